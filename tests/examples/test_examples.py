"""Every example runs, at sizes that a test can afford."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.config import modifiers
from tests.run.test_run import CHANGES

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = (*CHANGES, "evaluators={}")


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Imports an example by name, with a folder of its own to work in."""
    monkeypatch.chdir(tmp_path)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_every_example_is_tested_here():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    source = Path(__file__).read_text()
    assert names
    assert {name for name in names if f'example("{name}")' not in source} == set()


def test_train_and_generate_then_logits_and_gradients(example, capsys):
    run = example("train_and_generate").main(*SMALL, "steps=3")
    assert run.step == 3
    example("logits_and_gradients").main(str(run.path))
    out = capsys.readouterr().out
    assert "gradient norm" in out


def test_own_layer(example):
    module = example("own_layer")
    assert set(re.findall(r"--with (\S+)", module.__doc__)) == {"squared-relu-example"}
    assert "squared-relu-example" in modifiers()
    run = module.main(*SMALL, "steps=3")
    assert "own_layer:SquaredReLU" in (run.path / "config.txt").read_text()


def test_own_input_learns_digits(example):
    run = example("own_input").main("steps=150")
    assert run.evaluate()["held_out/accuracy"] > 0.9
    assert "images_per_second" in run.metrics()[-2]
    assert not (run.path / "tokenizer").exists()
    with pytest.raises(dovetail.Error, match="has no tokenizer"):
        run.generate("7")


def test_own_input_as_a_script(tmp_path):
    """Its run can be resumed by the script, and opened elsewhere with the script as a module."""
    root = {"PYTHONPATH": str(EXAMPLES.parent), "XDG_CACHE_HOME": str(tmp_path)}
    for steps in (2, 4):
        subprocess.run(
            [sys.executable, EXAMPLES / "own_input.py", f"steps={steps}"],
            cwd=tmp_path,
            env=os.environ | root,
            check=True,
            capture_output=True,
        )
    (run,) = tmp_path.glob("runs/*")
    assert "own_input:DigitClassifier" in (run / "config.txt").read_text()
    assert json.loads((run / "run.json").read_text())["imports"] == ["own_input"]
    assert (run / "checkpoints" / "4-2").is_dir()
    opened = subprocess.run(
        [sys.executable, "-m", "dovetail", "evaluate", run, "--import", "own_input"],
        cwd=EXAMPLES,
        env=os.environ | root,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "held_out/accuracy" in opened.stdout


def test_own_trainer_loop_stops_at_ctrl_c_and_continues(example, monkeypatch):
    module = example("own_trainer_loop")
    batch = module.PlainTrainer.batch

    def interrupted(self, step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(module.PlainTrainer, "batch", interrupted)
        with pytest.raises(dovetail.Interrupted, match="stopped by SIGINT after step 2; it is sav"):
            module.main(*SMALL, "steps=4")
    run = module.main(*SMALL, "steps=4")
    assert run.step == 4


def test_fine_tune_lora(example):
    run = example("fine_tune_lora").main(None, *SMALL)
    assert Path("adapters/adapter_model.safetensors").is_file()
    assert Path("merged/model.safetensors").is_file()
    frozen = [path for path in run.params if "lora" not in path]
    base = dovetail.load("runs/imported").params
    assert set(frozen) == set(base)
    assert all(np.array_equal(run.params[path], base[path]) for path in frozen)
