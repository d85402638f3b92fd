"""Checkpointer, input and trainer loop all from outside: the run generates, exports and resumes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dovetail
from dovetail.experiments import experiment
from dovetail.models.llama import llama
from tests.outside.own_components import NumpyCheckpointer, Sums

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_trainer_loop.py"


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


def steps_of(printed):
    """Returns the steps that the loop of the example has printed."""
    return [int(line.split()[1][:-1]) for line in printed.splitlines() if line.startswith("step ")]


def test_a_run_of_outside_components_generates_exports_and_resumes(sums, tmp_path, capsys):
    run = sums.train(steps=4, folder=tmp_path / "run", progress=False)
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["4.npz"]
    text = run.generate("3+4=", max_new_tokens=6, temperature=0).text
    assert dovetail.load(run.path).generate("3+4=", max_new_tokens=6, temperature=0).text == text
    assert run.logits("3+4=").shape == (4, 257)
    run.export_hf(tmp_path / "out", progress=False)
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 257
    assert steps_of(capsys.readouterr().out) == [1, 2, 3, 4]
    resumed = sums.train(steps=8, folder=run.path, progress=False)
    assert resumed.step == dovetail.load(run.path).step == 8
    assert steps_of(capsys.readouterr().out) == [5, 6, 7, 8], "from the saved state"


def test_a_resumed_run_of_outside_components_is_the_run_at_once(sums, tmp_path, capsys):
    constant = sums.override("learner.schedule=ConstantSchedule")
    constant.train(steps=3, folder=tmp_path / "run", progress=False)
    resumed = constant.train(steps=6, folder=tmp_path / "run", progress=False)
    assert steps_of(capsys.readouterr().out) == [1, 2, 3, 4, 5, 6]
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


PACKAGES = ("--import", "tests.outside.own_components", "--import", "own_trainer_loop")
CHANGES = (
    "input=Sums",
    "checkpointer=NumpyCheckpointer",
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "evaluators={}",
)


def command(folder, verb, *arguments):
    """Runs a command with the packages in a process of its own; returns what it prints."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLE.parent}"}
    return subprocess.run(
        [sys.executable, "-m", "dovetail", verb, *arguments, *PACKAGES],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_the_command_line_trains_resumes_generates_and_exports(sums, tmp_path):
    train = ("train", "tiny-lm", "--with", "plain-loop-example", *CHANGES, "--run", "run")
    assert steps_of(command(tmp_path, *train, "--steps", "4")) == [1, 2, 3, 4]
    assert steps_of(command(tmp_path, *train, "--steps", "6")) == [5, 6]
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == [
        "4.npz",
        "6.npz",
    ]
    options = ("--prompt", "3+4=", "--tokens", "6", "--temperature", "0", "--json")
    found = json.loads(command(tmp_path, "generate", "run", *options))
    run = dovetail.load(tmp_path / "run")  # this process has the packages, too
    assert found["text"] == run.generate("3+4=", max_new_tokens=6, temperature=0).text
    command(tmp_path, "export", "hf", "run", "--to", "out")
    weights = load_file(tmp_path / "out/model.safetensors")
    np.testing.assert_array_equal(
        weights["model.embed_tokens.weight"], run.params["decoder/embedding/weight"]
    )
