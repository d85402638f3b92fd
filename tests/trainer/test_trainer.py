"""The trainer: it learns, resumes exactly, stops cleanly, and never loses the last good state."""

import json
import math
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, Component, ConfigError, identity
from dovetail.data import PackingStatistics, PreparedData
from dovetail.learner import (
    Accumulate,
    CosineSchedule,
    Lion,
    OneForwardOneBackward,
    ParameterGroup,
)
from dovetail.module import Module, parameter
from dovetail.parallel import HostMemory, MeshLayout
from dovetail.runtime import abstract_state
from dovetail.runtime.checkpoints import stores
from dovetail.trainer import (
    HeldOutLoss,
    Hooks,
    NonFiniteError,
    PeriodicEvaluator,
    Trainer,
    feed,
    loop,
    program,
)


def train(config, folder, **options):
    folder.mkdir(exist_ok=True)
    return config.build().train(folder, **options)


def losses(folder):
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def evaluations(folder):
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {e["step"]: v for e in entries for k, v in e.items() if k.endswith("held_out/loss")}
    assert found
    return found


def test_the_loss_falls(config, tmp_path):
    outcome = train(config.set(steps=40), tmp_path / "run")
    found = losses(tmp_path / "run")
    assert outcome.step == 40
    assert list(found) == list(range(1, 41))
    assert found[1] == pytest.approx(math.log(264), rel=0.1)
    assert found[40] < 0.8 * found[1]


def test_a_run_that_is_cut_and_continued_gives_the_same_bits(config, tmp_path):
    train(config, tmp_path / "whole")
    train(config.clone(steps=6), tmp_path / "cut")
    train(config, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_metrics_after_the_restored_step_are_cut(config, tmp_path):
    folder = tmp_path / "run"
    train(config.clone(steps=8), folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 9, "loss": 123.0}) + "\n")
    train(config, folder)
    assert losses(folder)[9] != 123.0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 12


def test_a_finished_run_can_be_extended_but_not_shortened(config, tmp_path):
    train(config.clone(steps=4), tmp_path / "run")
    assert train(config.clone(steps=4), tmp_path / "run").step == 4
    with pytest.raises(ConfigError, match="is at step 4 already, past the 2 asked"):
        train(config.clone(steps=2), tmp_path / "run")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_finishes_the_step_saves_and_can_be_continued(config, tmp_path, name):
    class Once:
        def __init__(self, step):
            self.step = step

        def __enter__(self):
            if self.step == 5:
                os.kill(os.getpid(), getattr(signal, name))

        def __exit__(self, *_):
            pass

    outcome = train(config, tmp_path / "run", hooks=Hooks(around_step=Once))
    assert (outcome.stopped_by, outcome.step) == (name, 6)
    train(config, tmp_path / "run")
    train(config, tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


class Explodes(Module):
    """A model whose gradient for one parameter is not finite once the batch is right for it."""

    class Config(Module.Config["Explodes"]):
        vocab_size: int = REQUIRED
        bad_step: int = REQUIRED

    def __init__(self, config):
        super().__init__(config)
        self.bad_step = config.bad_step
        self.weight = parameter((4,), (None,), fan_in=(0,))
        self.fuse = parameter((1,), (None,), fan_in=(0,))

    def __call__(self, batch):
        bad = jnp.where(batch.extras["number"].max() == self.bad_step, jnp.nan, 0.0)
        # The value stays finite, the gradient of the fuse does not.
        self.add_loss("square", jnp.sum(self.weight**2) + _only_gradient(self.fuse, bad), 1.0)


@jax.custom_jvp
def _only_gradient(fuse, bad):
    return jnp.sum(fuse) * 0.0


@_only_gradient.defjvp
def _only_gradient_jvp(primals, tangents):
    fuse, bad = primals
    return _only_gradient(fuse, bad), jnp.sum(tangents[0]) * bad


class Numbered(Component):
    """An input whose batches carry their own number."""

    class Config(Component.Config["Numbered"]):
        inner: object = REQUIRED

    vocab_size = 4

    def spec(self):
        from dovetail.module import sequence_batch_spec

        return sequence_batch_spec(8, 4, {"number": "int32"})

    def batch(self, step, rows=None):
        from dovetail.module import TokenBatch

        zeros = np.zeros((8, 4), np.int32)[rows or slice(None)]
        return TokenBatch(
            tokens=zeros,
            targets=zeros,
            positions=zeros,
            segment_ids=zeros + 1,
            loss_weights=zeros.astype(np.float32),
            extras={"number": zeros + step},
        )

    def prepare(self, progress=True):
        return PreparedData(Path(), vocabulary=4, splits={}, reused=True, seconds=0.0)

    def held_out(self, num_batches=None):
        return self

    def tokenizer(self):
        return None


@pytest.mark.parametrize(("bad_step", "saved"), [(0, None), (3, None), (9, 8)])
def test_a_gradient_that_is_not_finite_stops_with_step_and_parameter(
    config, tmp_path, bad_step, saved
):
    config = config.clone(model=Explodes.Config(bad_step=bad_step), mesh=MeshLayout.Config())
    config.input = Numbered.Config(inner=None)
    folder = tmp_path / "run"
    with pytest.raises(
        NonFiniteError, match=rf"Step {bad_step + 1}: the gradient of fuse is not finite"
    ):
        train(config, folder)
    # The state in memory may be the cause, so the newest verified one stands.
    trainer = config.build()
    trainer.checkpointer.open(folder / "checkpoints")
    program = trainer.program()
    found = trainer.checkpointer.restore(
        abstract_state(program.state_shapes, program.state_shardings)
    )
    if saved is None:
        assert found is None
        return
    step, state = found
    assert step == int(state.step) == saved
    assert int(state.halted_at) == -1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_debug_nans_stops_at_the_operation(config, tmp_path):
    config = config.clone(model=Explodes.Config(bad_step=1), mesh=MeshLayout.Config(fsdp=8))
    config.input = Numbered.Config(inner=None)
    with pytest.raises(FloatingPointError, match="nan"):
        train(config, tmp_path / "run", hooks=Hooks(debug_nans=True))


def test_a_last_save_that_fails_is_reported(config, tmp_path, caplog, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "Save", fail)
    outcome = train(config, tmp_path / "run")
    assert outcome.step == 12, "training went on"
    assert not outcome.saved
    assert "Saving step 4 failed" in caplog.text
    assert "Saving step 12 failed" in caplog.text


def test_a_batch_that_does_not_divide_the_mesh_is_refused(config):
    config.input.batch_size = 6
    with pytest.raises(ConfigError, match=r"input.batch_size.*size 6.*4 shards"):
        config.build().program()


def test_a_vocabulary_that_is_too_small_is_refused(config):
    config.model.vocab_size = 100
    with pytest.raises(ConfigError, match="257 tokens, but the model only 100"):
        config.build()


def test_another_mesh_gives_the_same_losses(config, tmp_path):
    train(config, tmp_path / "sharded")
    train(config.clone(mesh=MeshLayout.Config(fsdp=1, data=-1)), tmp_path / "data")
    ours, theirs = losses(tmp_path / "sharded"), losses(tmp_path / "data")
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)


@pytest.mark.sweep
def test_a_run_may_go_on_in_stages_and_back_on_one_axis(config, tmp_path):
    held_out = HeldOutLoss.Config(num_batches=1, every=4)
    config.set(evaluators={"held_out": held_out})
    config.learner.gradients = Accumulate.Config(microbatches=2)
    train(config, tmp_path / "whole")
    staged = config.clone(mesh=MeshLayout.Config(pipeline=2, fsdp=2, model=2))
    staged.learner.gradients = OneForwardOneBackward.Config(microbatches=2)
    train(config.clone(steps=4), tmp_path / "staged")
    train(staged.clone(steps=8), tmp_path / "staged")
    train(config, tmp_path / "staged")
    for found in (losses, evaluations):
        ours, theirs = found(tmp_path / "staged"), found(tmp_path / "whole")
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)


def test_accumulation_trains_like_the_big_batch(config, tmp_path):
    train(config, tmp_path / "whole")
    config.learner.gradients = Accumulate.Config(microbatches=2)
    train(config, tmp_path / "parts")
    ours, theirs = losses(tmp_path / "parts"), losses(tmp_path / "whole")
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)


def test_an_offloaded_optimizer_trains_saves_and_resumes(config, tmp_path):
    train(config, tmp_path / "device")
    hosted = config.clone(steps=8)
    hosted.learner.optimizer_memory = HostMemory.Config()
    train(hosted, tmp_path / "host")

    trainer = hosted.build()
    trainer.checkpointer.open(tmp_path / "host" / "checkpoints")
    program = trainer.program()
    like = abstract_state(program.state_shapes, program.state_shardings)
    step, state = trainer.checkpointer.restore(like)
    assert step == 8
    kinds = {leaf.ndim > 0: leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.optimizer)}
    assert kinds == {True: "pinned_host", False: "device"}

    train(config, tmp_path / "host")  # where it lies may change when a run goes on
    assert losses(tmp_path / "host") == losses(tmp_path / "device")


def test_the_state_is_sharded_and_donated(config):
    program = config.build().program()
    shardings = program.state_shardings
    weight = "decoder/stack/layer/feed_forward/up/weight"
    assert shardings.params[weight].spec == jax.sharding.PartitionSpec(None, ("fsdp",), ("model",))
    memory = program.lowered.compile().memory_analysis()
    assert memory.alias_size_in_bytes > 0


def test_the_loop_imports_no_class_of_the_trainers_children():
    """The trainer knows its children by interface: their classes stand only in its defaults."""
    from dovetail.config.registry import find_component

    for module in (loop, program, feed):
        for name, value in vars(module).items():
            is_part = isinstance(value, type) and issubclass(value, Component)
            assert not is_part or name == "Module", f"{module.__name__} imports the part {name}"
    assert find_component("Trainer", "") is Trainer


def test_a_finished_run_started_again_adds_no_line(config, tmp_path):
    config.evaluators = {"held_out": HeldOutLoss.Config(num_batches=1)}
    train(config, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_far_too_many_epochs_are_warned_of_once(config, tmp_path):
    said = []
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(30):
        (corpus / f"{number}.txt").write_text(f"text {number}")
    short = config.clone(input=config.input.clone(batch_size=32), steps=2)
    short.input.corpus.files = str(corpus)
    tokens = short.build().input.prepare().splits["train"].tokens
    assert tokens < 32 * 16
    train(short, tmp_path / "run", hooks=Hooks(said.append))
    (warning,) = [line for line in said if line.startswith("warning")]
    epochs = round(2 * 32 * 16 / tokens)
    assert f"{tokens} training tokens and a step takes 512" in warning
    assert f"2 steps are {epochs} epochs" in warning


def with_rows(source, rows):
    """Returns statistics of data with a number of rows."""
    length = source.spec().tokens.shape[1]
    return PackingStatistics(
        rows=rows, sequence_length=length, documents=1, tokens=rows * length, documents_split=1
    )


@pytest.mark.parametrize(("steps", "warns"), [(50, False), (51, True)])
def test_many_epochs_are_warned_of(config, monkeypatch, steps, warns):
    source = config.input.build()
    data = with_rows(source, config.input.batch_size)
    monkeypatch.setattr(source, "packing_statistics", lambda: data)
    assert ("51 steps are 51 epochs" in " ".join(source.warnings(steps))) == warns


def test_one_step_is_one_epoch(config, monkeypatch):
    source = config.input.build()
    data = with_rows(source, config.input.batch_size - 1)
    monkeypatch.setattr(source, "packing_statistics", lambda: data)
    assert "so 1 step is 1 epoch;" in source.warnings(1)[0]


class FullDisk(Component):
    """A writer on a full disk."""

    def open(self, folder, first_step):
        raise OSError(28, "No space left on device")

    def write(self, step, metrics):
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


def test_a_writer_on_a_full_disk_does_not_stop_training(config, tmp_path, caplog):
    config.writers = {**config.writers, "full": FullDisk.Config()}
    outcome = train(config, tmp_path / "run")
    assert (outcome.step, outcome.saved) == (12, True)
    assert len(losses(tmp_path / "run")) == 12
    assert caplog.text.count("The writer 'full' failed") == 1


class Broken(PeriodicEvaluator):
    """An evaluator with a bug."""

    class Config(PeriodicEvaluator.Config["Broken"]):
        pass

    def evaluate(self, evaluation):
        raise RuntimeError("a bug in an evaluator")


def test_a_save_that_has_begun_is_completed_whatever_happens(config, tmp_path):
    config.evaluators = {"broken": Broken.Config()}
    with pytest.raises(RuntimeError, match="a bug in an evaluator"):
        train(config, tmp_path / "run")
    checkpointer = config.checkpointer.build()
    checkpointer.open(tmp_path / "run" / "checkpoints")
    assert checkpointer.steps()[-1] == 12


def test_skipped_batches_may_be_added_on_resume(config, tmp_path):
    assert identity(config) == identity(
        config.clone().set(input=config.input.clone(skips=((3, 4),)))
    )
    train(config.clone(steps=3), tmp_path / "run")
    skipping = config.clone()
    skipping.input.skips = ((3, 4),)
    train(skipping, tmp_path / "run")
    train(config, tmp_path / "plain")
    ours, plain = losses(tmp_path / "run"), losses(tmp_path / "plain")
    assert [ours[step] == plain[step] for step in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_sweep_over_rate_decay_and_steps_compiles_one_program(config, tmp_path):
    config.learner.schedule = CosineSchedule.Config(peak=1e-3)
    other = config.clone(steps=15)
    other.learner.weight_decay = 0.1
    other.learner.schedule.peak = 3e-3
    first, second = (each.build().program() for each in (config, other))
    assert first.lowered.as_text() == second.lowered.as_text()

    lines = []
    train(config, tmp_path / "first")
    train(other, tmp_path / "second", hooks=Hooks(log=lines.append))
    assert any(line.startswith("loaded the step from the cache") for line in lines)
    assert losses(tmp_path / "first")[12] != losses(tmp_path / "second")[12]


def test_parameter_groups_are_sharded_saved_and_resumed(config, tmp_path):
    config.learner.groups = (
        ParameterGroup.Config(pattern="*embedding*", optimizer=Lion.Config(), rate=0.1),
        ParameterGroup.Config(pattern="decoder/stack/layer/0/*", rate=0.5),
    )
    shardings = config.build().program().state_shardings
    assert set(shardings.optimizer) == {"group_0", "others"}
    for path, sharding in shardings.optimizer["others"].mu.items():
        assert sharding == shardings.params[path]
    train(config, tmp_path / "whole")
    train(config.clone(steps=6), tmp_path / "cut")
    train(config, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_parameter_sharded_by_path_trains_the_same(config, tmp_path):
    train(config, tmp_path / "plain")
    weight = "decoder/embedding/weight"
    config.rules.parameters = {weight: (("data", "model"), None)}
    program = config.build().program()
    expected = jax.sharding.PartitionSpec(("data", "model"))
    shardings = program.state_shardings
    assert shardings.params[weight].spec == shardings.optimizer.mu[weight].spec == expected
    assert program.initialize().params[weight].sharding.spec == expected
    train(config, tmp_path / "by_path")
    ours, theirs = losses(tmp_path / "by_path"), losses(tmp_path / "plain")
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)

    config.rules.parameters = {weight: ("pipeline", "fsdp")}
    config.mesh = MeshLayout.Config(data=1, fsdp=8)
    assert config.build().program().state_shardings.params[weight].spec[1] == "fsdp"
    config.rules.parameters = {"decoder/embeding/weight": ("model", None)}
    with pytest.raises(ConfigError, match=r"matches no parameter\. Did you mean"):
        config.build().program()
