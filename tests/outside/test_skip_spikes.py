"""A policy from outside the package skips the batch of a spike, and the run remembers it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dovetail.config import Component, ConfigError
from dovetail.data import TokenInput
from dovetail.models import CausalLM
from dovetail.module import ArraySpec, batch_size
from dovetail.runtime import Checkpointer, Continue, FailedSave, Stop
from dovetail.trainer import FaultError, NonFiniteError
from tests.outside.skip_spikes import leave_out_spikes
from tests.outside.steps import EIGHT, ONE, layout_on
from tests.trainer import conftest
from tests.trainer.test_trainer import losses, train

corpus, small = conftest.corpus, conftest.config


class SpikyInput(TokenInput):
    """An input in which some batches add to the loss."""

    class Config(TokenInput.Config):
        spikes: tuple[int, ...] = ()
        height: float = 100.0

    def __init__(self, config):
        super().__init__(config)
        self.spikes, self.height, self.taken = config.spikes, config.height, []

    def spec(self):
        spec = super().spec()
        rows = ArraySpec((batch_size(spec),), "float32", ("batch",))
        return replace(spec, extras=spec.extras | {"spike": rows})

    def batch(self, step, rows=None):
        batch, number = super().batch(step, rows), self.batch_number(step)
        self.taken.append(number)
        height = self.height if number in self.spikes else 0.0
        spike = np.full(len(batch.tokens), height, np.float32)
        return replace(batch, extras=batch.extras | {"spike": spike})


class SpikyLM(CausalLM):
    """A language model whose loss follows the batch."""

    class Config(CausalLM.Config):
        pass

    def __call__(self, batch):
        super().__call__(batch)
        self.add_loss("spike", batch.extras["spike"].sum(), batch.extras["spike"].size)


def fields(config):
    return {name: getattr(config, name) for name in config.fields()}


@pytest.fixture
def spiking(small):
    def make(spikes, height=100.0, every=4):
        spiky = small.clone(
            model=SpikyLM.Config(**fields(small.model)),
            input=SpikyInput.Config(**fields(small.input), spikes=spikes, height=height),
            checkpointer=Checkpointer.Config(every=every),
        )
        return leave_out_spikes(spiky)

    return make


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mesh", [ONE, EIGHT], ids=["one", "eight"])
def test_a_spike_is_rolled_back_and_its_batch_is_skipped(spiking, mesh, tmp_path):
    layout = layout_on(mesh)
    spiked = spiking((6,)).set(mesh=layout)
    outcome = train(spiked, tmp_path / "run")
    assert outcome.step == 12
    (event,) = events(tmp_path / "run")
    assert (event["event"], event["step"], event["resumed_at"]) == ("StepEnd", 7, 4)
    assert json.loads((tmp_path / "run/skips.json").read_text()) == [[6, 7]]
    clean = spiking(()).set(mesh=layout)
    clean.input.skips = ((6, 7),)
    train(clean, tmp_path / "clean")
    assert losses(tmp_path / "run") == losses(tmp_path / "clean"), "as if the batch never was"


def test_a_resumed_run_still_leaves_out_the_batch(spiking, tmp_path):
    train(spiking((6,)).set(steps=9), tmp_path / "run")
    resumed = spiking((6,)).build()
    resumed.train(tmp_path / "run")
    assert 6 not in resumed.input.taken
    train(spiking((6,)), tmp_path / "at once")
    assert losses(tmp_path / "run") == losses(tmp_path / "at once")


def test_a_step_that_is_not_finite_is_skipped_in_memory(spiking, tmp_path):
    outcome = train(spiking((6,), np.nan, every=100), tmp_path / "run")
    assert outcome.step == 12
    (event,) = events(tmp_path / "run")
    assert (event["event"], event["resumed_at"]) == ("NonFiniteStep", 6), "no checkpoint is needed"


def test_a_spike_before_the_first_checkpoint_starts_again(spiking, tmp_path):
    assert train(spiking((2,), every=100), tmp_path / "run").step == 12


class FullDisk(Checkpointer):
    """A checkpointer whose first save fails."""

    class Config(Checkpointer.Config):
        pass

    def take_faults(self):
        failed, self.failed = not hasattr(self, "failed"), True
        return [FailedSave(4, "the disk is full")] if failed else super().take_faults()


def test_a_failed_save_ends_no_run(spiking, tmp_path):
    trainer = spiking(()).set(checkpointer=FullDisk.Config(every=4)).build()
    (tmp_path / "run").mkdir()
    assert trainer.train(tmp_path / "run").step == 12
    assert trainer.checkpointer.failed, "the policy was told"


def test_the_limit_ends_the_run_and_the_newest_checkpoint_is_from_before(spiking, tmp_path):
    config = spiking((6,))
    config.faults.limit = 0
    with pytest.raises(FaultError, match=r"the loss spiked to .* newest checkpoint is from before"):
        train(config, tmp_path / "run")
    assert config.build().saved_step(tmp_path / "run") == 4
    config = spiking((6,), np.nan)
    config.faults.limit = 0
    with pytest.raises(NonFiniteError, match="The newest checkpoint is from before"):
        train(config, tmp_path / "other")


class Careless(Component):
    def on_event(self, event):
        return Continue()


def test_what_is_not_finite_cannot_be_continued(spiking, tmp_path):
    config = spiking((6,), np.nan).set(faults=Careless.Config())
    with pytest.raises(ConfigError, match=r"Careless answers Continue.* cannot be continued"):
        train(config, tmp_path / "run")


def test_a_damaged_record_of_skips_is_named(spiking, tmp_path):
    train(spiking(()).set(steps=2), tmp_path / "run")
    (tmp_path / "run/skips.json").write_text("[[1]]")
    with pytest.raises(ConfigError, match=r"skips\.json cannot be read"):
        train(spiking(()), tmp_path / "run")


def test_a_stop_of_a_policy_is_one_message(spiking, tmp_path):
    class Never(Component):
        def on_event(self, event):
            return Stop("Enough.")

    trainer = spiking(()).build()
    trainer.faults = Never.Config().build()
    with pytest.raises(FaultError, match=r"Enough\. The newest checkpoint is from before"):
        trainer.train(tmp_path)
