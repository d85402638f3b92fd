"""`import dovetail`: experiments with changes, and where their runs go."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from dovetail.config import Component
from dovetail.run import default_folder
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


@pytest.mark.parametrize(
    ("features", "overrides", "name"),
    [
        ((), (), "tiny-lm"),
        ((), ("steps=7", "log_every=5"), "tiny-lm"),
        ((), ("learner.schedule.peak=0.003",), "tiny-lm,peak=0.003"),
        (("moe:num_experts=4",), ("seed=1",), "tiny-lm,moe:num_experts=4,seed=1"),
        ((), ("input.seed=3",), "tiny-lm,input.seed=3"),
    ],
)
def test_a_folder_has_a_name_that_people_read(features, overrides, name):
    changed = dovetail.experiment("tiny-lm").with_features(*features).override(*overrides)
    assert changed.folder == Path("runs") / name


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


class InterruptsAtTwo(Component):
    """A writer that receives Ctrl-C after the second step."""

    def open(self, folder, first_step):
        pass

    def write(self, step, metrics):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self):
        pass


def test_ctrl_c_saves_and_the_same_call_continues(tmp_path, monkeypatch):
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, "evaluators={}")
    stopping = experiment.override("writers.stops=InterruptsAtTwo")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(dovetail.Interrupted, match=r"stopped by SIGINT after step \d; it is saved"):
        stopping.train(steps=30, folder=tmp_path / "run", progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = dovetail.load(tmp_path / "run")
    assert 2 <= stopped.step < 30
    run = experiment.train(steps=30, folder=tmp_path / "run", progress=False)
    assert run.step == 30
    again = experiment.train(steps=5, folder=tmp_path / "run", progress=False)
    assert again.step == 30, "a run that is past the steps is returned as it is"
