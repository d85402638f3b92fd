"""`import dovetail`: experiments with changes, and where their runs go."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from statistics import median

import pytest

import dovetail
from dovetail.config import Component, modifier
from dovetail.run import compare_runs, default_folder
from dovetail.runtime import Checkpointer, Failure, StopOnFaults
from dovetail.trainer import FaultError
from dovetail.utils import Progress
from tests.run.test_run import CHANGES


def test_importing_is_cheap_and_lists_the_names():
    script = (
        "import sys, dovetail\n"
        "assert {'experiment', 'load', 'Run', 'Error'} <= set(dir(dovetail))\n"
        "dovetail.experiment('tiny-lm').override(steps=3).with_features('moe')\n"
        "print([name for name in ('jax', 'numpy', 'rich') if name in sys.modules])\n"
    )
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    shown = subprocess.check_output([sys.executable, "-c", script], env=os.environ | root)
    assert shown.decode().strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dovetail.trian


def test_the_order_of_calls_does_not_matter():
    key = "model.decoder.stack.layer.feed_forward.router.selection.top_k=1"
    plain = dovetail.experiment("tiny-lm")
    one = plain.override(key).with_features("moe:num_experts=4")
    other = plain.with_features("moe:num_experts=4").override(key)
    assert one.config == other.config
    assert plain.config == dovetail.experiment("tiny-lm").config, "an experiment never changes"


def test_mistakes_are_errors_that_help():
    with pytest.raises(dovetail.Error, match="Did you mean 'tiny-lm'"):
        dovetail.experiment("tiny-ml")
    with pytest.raises(dovetail.Error, match=r"learner\.schedule\.peak"):
        _ = dovetail.experiment("tiny-lm").override("lr=0.1").config
    with pytest.raises(dovetail.Error, match="moe"):
        _ = dovetail.experiment("tiny-lm").with_features("meo").config
    with pytest.raises(dovetail.Error, match=r"override: expected a text such as .*got \{'steps'"):
        dovetail.experiment("tiny-lm").override({"steps": 5})
    name = 5
    with pytest.raises(dovetail.Error, match=r"experiment: expected a name.*, got 5"):
        dovetail.experiment(name)
    with pytest.raises(dovetail.Error, match=r"target: expected a text such as 'tpu-.*', got 5"):
        dovetail.experiment("tiny-lm").target(name)


def test_overrides_of_what_a_later_one_replaces_apply_with_a_target_too():
    changes = ("evaluators.held_out.num_batches=1", "evaluators={}")
    plain = dovetail.experiment("tiny-lm").override(*changes)
    assert plain.config.evaluators == plain.target("cpu-8").config.evaluators == {}


class FailingSaver(Checkpointer):
    """Its last save fails."""

    class Config(Checkpointer.Config):
        pass

    def finish(self):
        super().finish()
        return False


def test_a_run_whose_last_save_failed_is_an_error(tmp_path):
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, steps=1)
    failing = experiment.override("checkpointer=tests.run.test_api:FailingSaver")
    with pytest.raises(FaultError, match="the last save failed"):
        failing.train(folder=tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("features", "overrides", "name"),
    [
        ((), (), "tiny-lm"),
        ((), ("steps=7", "log_every=5"), "tiny-lm"),
        ((), ("learner.schedule.peak=0.003",), "tiny-lm,peak=0.003"),
        (("moe:num_experts=4",), ("seed=1",), "tiny-lm,moe:num_experts=4,seed=1"),
        ((), ("input.seed=3",), "tiny-lm,input.seed=3"),
        ((), ("seed=-1",), "tiny-lm,seed=-1"),
        ((), ("learner.optimizer=Lion",), "tiny-lm,optimizer=Lion"),
        (
            (),
            ("learner.optimizer=Lion", "learner.optimizer.b1=0.8"),
            "tiny-lm,optimizer=Lion,b1=0.8",
        ),
        (
            (),
            ("input.corpus=TextFiles", "input.corpus.files=notes"),
            "tiny-lm,corpus=TextFiles,files=notes",
        ),
        (
            (),
            (
                "model.decoder.stack.layer.attention.mask=dovetail.kernels:SlidingWindow",
                "model.decoder.stack.layer.attention.mask.window=8",
            ),
            "tiny-lm,mask=SlidingWindow,window=8",
        ),
    ],
)
def test_a_folder_has_a_name_that_people_read(features, overrides, name):
    changed = dovetail.experiment("tiny-lm").with_features(*features).override(*overrides)
    assert changed.folder == Path("runs") / name


def test_another_component_with_a_path_has_a_name_that_people_read():
    plain = dovetail.experiment("tiny-lm").override("input.corpus=TextFiles")
    one, other = (plain.override(f"input.corpus.files={x}").folder.name for x in ("/a/b", "/a-b"))
    assert re.fullmatch(r"tiny-lm,corpus=TextFiles,files=a-b-[0-9a-f]{8}", one)
    assert other.startswith("tiny-lm,corpus=TextFiles,files=a-b-")
    assert one != other
    default = plain.override("input.corpus.files=/a/b", "input.corpus.passage_bytes=65536")
    assert default.folder.name == one, "the same identity"


def test_a_name_that_would_be_too_long_gets_a_hash():
    plain = dovetail.experiment("tiny-lm")
    corpus = ("input.corpus=TextFiles", f"input.corpus.files={'long' * 30}")
    folders = {plain.override(*corpus, f"seed={seed}").folder.name for seed in (1, 2)}
    assert len(folders) == 2
    assert all(len(name) <= 96 and name[-9] == "-" for name in folders)


def test_texts_in_names_are_safe():
    config = dovetail.experiment("tiny-lm").config
    folder = default_folder("tiny-lm", ["from-run:path=../runs/x y"], config, config)
    assert folder.parent == Path("runs")
    assert "/" not in folder.name
    assert " " not in folder.name


def test_a_plan_by_arithmetic():
    plan = dovetail.experiment("llama2-7b").plan("tpu-v5p-512", compile=False)
    assert plan.fits
    assert 1 < plan.step_seconds < 10


def test_a_dry_run_for_a_machine_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = dovetail.experiment("tiny-lm").target("tpu-v5p-16").dry_run()
    assert found.size.mesh == {"data": 8}
    assert found.size.data["tokenizer"] == "BytePairTokenizer (vocab_size=2048)"
    assert found.state_fits
    assert found.fits is None, "activations are unknown, because nothing was compiled"
    assert "cross_entropy: chunked (tpu)" in found.kernels
    with pytest.raises(dovetail.Error, match="this is not that machine"):
        dovetail.experiment("tiny-lm").target("tpu-v5p-16").train(progress=False)
    assert list(tmp_path.iterdir()) == []


def test_chosen_steps_are_profiled(tmp_path, capsys):
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, "evaluators={}")
    run = experiment.train(steps=3, folder=tmp_path / "run", profile=range(1, 2))
    assert list((run.path / "profile").rglob("*.xplane.pb"))
    assert f"profile of steps 1:2 in {run.path}" in capsys.readouterr().err
    with pytest.raises(dovetail.Error, match="will take the steps 3:5"):
        experiment.train(steps=5, folder=run.path, profile=range(1, 3), progress=False)
    assert dovetail.load(run.path).step == 3


@pytest.mark.parametrize("profile", [range(3, 3), range(-1, 2), range(0, 8, 2)])
def test_a_profile_of_no_steps_in_a_row_is_refused_at_once(profile, tmp_path):
    with pytest.raises(dovetail.Error, match=r"expected steps such as range\(10, 13\), got range"):
        dovetail.experiment("tiny-lm").train(folder=tmp_path / "run", profile=profile)
    assert list(tmp_path.iterdir()) == []


class RunsOutOfMemory(Component):
    """An evaluator that fails as JAX does without memory."""

    def due(self, step):
        return False

    def evaluate(self, evaluation):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")


def test_failures_of_the_machine_are_explained(tmp_path):
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, "evaluators={}")
    failing = experiment.override("evaluators.fails=RunsOutOfMemory")
    out_of_memory = r"out of memory: .* Try a smaller input\.batch_size"
    with pytest.raises(dovetail.Error, match=out_of_memory) as caught:
        failing.train(steps=1, folder=tmp_path / "run", progress=False)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(dovetail.Error, match=out_of_memory):
        dovetail.load(tmp_path / "run").evaluate("fails")


def test_a_path_that_cannot_exist_is_explained(tmp_path):
    path, advice = tmp_path / ("x" * 300), r"xx/?.*: File name too long\. Choose another path\."
    with pytest.raises(dovetail.Error, match=advice):
        dovetail.experiment("tiny-lm").override(*CHANGES).train(folder=path, progress=False)
    for open_run in (dovetail.load, dovetail.experiment):
        with pytest.raises(dovetail.Error, match=advice):
            open_run(path)


class InterruptsAtTwo(Component):
    """A writer that receives Ctrl-C after the second step."""

    def open(self, folder, first_step):
        pass

    def write(self, step, metrics):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self):
        pass


def test_ctrl_c_saves_and_the_same_call_continues(tmp_path, capsys):
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, "evaluators={}")
    stopping = experiment.override("writers.stops=InterruptsAtTwo")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(dovetail.Interrupted, match=r"stopped by SIGINT after step \d; it is saved"):
        stopping.train(steps=30, folder=tmp_path / "run", progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = dovetail.load(tmp_path / "run")
    assert 2 <= stopped.step < 30
    assert capsys.readouterr() == ("", ""), "without progress it is silent"
    run = experiment.train(steps=30, folder=tmp_path / "run")
    assert run.step == 30
    shown = capsys.readouterr()
    assert f"resumed from step {stopped.step}" in shown.err
    assert "step 30/30  loss " in shown.err
    assert shown.out == "", "progress is on standard error"
    comparison = compare_runs([stopped, dovetail.load(run.path)])
    differences = comparison.differences
    assert set(differences) == {"writers", "writers.stops"}, "progress is not a difference of runs"
    seconds = [entry["step_seconds"] for entry in run.metrics() if "step_seconds" in entry]
    assert comparison.metrics["step_seconds"][1] == median(seconds)
    again = experiment.train(steps=5, folder=tmp_path / "run", progress=False)
    assert again.step == 30, "a run that is past the steps is returned as it is"
    with Progress("again", enabled=False) as progress:
        prepared = experiment.override(steps=5).prepare(progress, folder=tmp_path / "run")
    outcome = prepared.recorded_outcome()
    assert (prepared.is_complete, outcome.step) == (True, 30)
    assert outcome.losses == run.losses()
    assert outcome.metrics["loss"] == run.losses()[-1][1]


class Raises(Component):
    """An evaluator that fails, and knows whether the state that it was given is still in memory."""

    class Config(Component.Config):
        error: str = ""

    state: weakref.ref

    def due(self, step):
        return step == 1

    def evaluate(self, evaluation):
        Raises.state = weakref.ref(next(iter(evaluation.params.values())))
        raise {
            "a second Ctrl-C": KeyboardInterrupt(),
            "no memory": MemoryError("RESOURCE_EXHAUSTED"),
            "wrong input": dovetail.Error("this corpus has no questions"),
            "a mistake": ZeroDivisionError(),
        }[self.config.error]


@pytest.mark.parametrize(
    ("error", "raised", "is_freed", "ended"),
    [
        ("a second Ctrl-C", KeyboardInterrupt, True, "KeyboardInterrupt"),
        ("no memory", Failure, True, None),
        ("wrong input", dovetail.Error, True, "Error"),
        ("a mistake", ZeroDivisionError, False, None),
    ],
)
def test_an_error_that_a_notebook_keeps_does_not_keep_the_state(
    tmp_path, error, raised, is_freed, ended
):
    """The same call would need twice the memory; for a mistake, a debugger needs the variables."""
    changes = (*CHANGES, "evaluators={}", "evaluators.raises=Raises")
    experiment = dovetail.experiment("tiny-lm").override(
        *changes, f"evaluators.raises.error={error!r}"
    )
    with pytest.raises(raised) as kept:
        experiment.train(steps=2, folder=tmp_path / "run", progress=False)
    gc.collect()
    assert (Raises.state() is None) is is_freed
    assert kept.value.__traceback__ is not None
    life = json.loads((tmp_path / "run" / "lives" / "000001.json").read_text())
    assert life["ended"] == ended


class OwnFaults(StopOnFaults):
    class Config(StopOnFaults.Config):
        max_lr: float = 1.0


def test_a_modifier_of_a_notebook_may_add_any_key():
    """The keys that are checked without JAX are those of the package, and it adds another."""
    _ = dovetail.experiment("tiny-lm").config  # its keys are cached
    modifier("own-faults-of-a-notebook")(lambda config: config.set(faults=OwnFaults.Config()))
    changed = dovetail.experiment("tiny-lm").with_features("own-faults-of-a-notebook")
    assert changed.override("faults.max_lr=2").config.faults.max_lr == 2
    with pytest.raises(dovetail.Error, match="has no field 'max_lrs'"):
        _ = changed.override("faults.max_lrs=2").config
