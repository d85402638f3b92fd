"""Checkpointer, input and trainer loop all from outside: the run generates, exports and resumes."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.experiments import experiment
from dovetail.models.llama import llama
from tests.outside.own_components import NumpyCheckpointer, Sums

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_trainer_loop.py"


@pytest.fixture(scope="module")
def sums():
    spec = importlib.util.spec_from_file_location("own_trainer_loop", EXAMPLE)
    loop = importlib.util.module_from_spec(spec)
    sys.modules["own_trainer_loop"] = loop
    spec.loader.exec_module(loop)

    def config():
        return loop.PlainTrainer.Config(
            model=llama(width=16, num_layers=2, num_heads=2, hidden=32, tied=True),
            input=Sums.Config(),
            checkpointer=NumpyCheckpointer.Config(),
            steps=4,
        )

    experiment("own-components", "everything from outside", tiny=config)(config)
    return dovetail.experiment("own-components")


def test_a_run_of_outside_components_generates_exports_and_resumes(sums, tmp_path):
    run = sums.train(steps=4, folder=tmp_path / "run", progress=False)
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["4.npz"]
    text = run.generate("3+4=", max_new_tokens=6, temperature=0).text
    assert dovetail.load(run.path).generate("3+4=", max_new_tokens=6, temperature=0).text == text
    assert run.logits("3+4=").shape == (4, 257)
    run.export_hf(tmp_path / "out", progress=False)
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 257
    before = dict(run.params)
    resumed = sums.train(steps=8, folder=run.path, progress=False)
    assert resumed.step == dovetail.load(run.path).step == 8
    assert all(np.any(array != before[path]) for path, array in resumed.params.items())


def test_a_resumed_run_of_outside_components_is_the_run_at_once(sums, tmp_path):
    constant = sums.override("learner.schedule=ConstantSchedule")
    constant.train(steps=3, folder=tmp_path / "run", progress=False)
    resumed = constant.train(steps=6, folder=tmp_path / "run", progress=False)
    at_once = constant.train(steps=6, folder=tmp_path / "at once", progress=False)
    for path, array in at_once.params.items():
        np.testing.assert_array_equal(array, resumed.params[path])


def test_other_runs_start_from_it_through_its_own_checkpointer(sums, tmp_path):
    base = sums.train(steps=2, folder=tmp_path / "base", progress=False)
    tuned = sums.override("learner.schedule=ConstantSchedule", "learner.schedule.peak=1e-9")
    tuned = tuned.override("initialization=InitFromRun", f"initialization.run={base.path}")
    run = tuned.train(steps=1, folder=tmp_path / "tuned", progress=False)
    for path, array in run.params.items():
        np.testing.assert_allclose(array, base.params[path], atol=1e-6)
