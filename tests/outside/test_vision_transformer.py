"""A vision transformer trains on drawn digits, on one device and on eight, and is a run."""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dovetail
from dovetail.cli import main
from dovetail.experiments import experiment
from tests.outside.vision_transformer import VisionTransformer

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_input.py"


@pytest.fixture(scope="module")
def digits():
    spec = importlib.util.spec_from_file_location("own_input", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_input"] = module
    spec.loader.exec_module(module)

    def config():
        return module.digits().set(model=VisionTransformer.Config(), steps=40)

    experiment("digits-vit", "a vision transformer on drawn digits", tiny=config)(config)
    return dovetail.experiment("digits-vit")


def loss_curve(run):
    return [entry["loss"] for entry in run.metrics() if "loss" in entry]


def test_it_learns_to_read_digits(digits, tmp_path):
    run = digits.train(folder=tmp_path / "run", progress=False)
    assert run.evaluate()["held_out/accuracy"] > 0.5
    batch = run.trainer.input.batch(10**6)
    assert run.model(batch.images).shape == (64, 10)
    assert float(run.loss(batch)) < 2.0


def test_a_mesh_with_fsdp_and_model_axes_computes_the_same(digits, tmp_path):
    one = digits.override("mesh.fsdp=1", "mesh.data=1", steps=3)
    devices = jax.devices()[:1]
    curves = []
    for name, changed in (
        ("one", one),
        ("eight", digits.override("mesh.data=2", "mesh.fsdp=2", "mesh.model=2", steps=3)),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if name == "one":
                patch.setattr(jax, "devices", lambda *_: devices)
            curves.append(loss_curve(changed.train(folder=tmp_path / name, progress=False)))
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)


def test_a_model_that_reads_what_the_batch_lacks_is_one_sentence(digits, tmp_path, capsys):
    words = digits.override("input=TokenInput", "input.sequence_length=8", "input.batch_size=8")
    with pytest.raises(dovetail.Error, match="VisionTransformer reads `images` of a batch"):
        words.override("evaluators={}").train(folder=tmp_path / "run", progress=False)
    argv = ["train", "digits-vit", "model=CausalLM", "model.vocab_size=9", "model.width=8"]
    assert main([*argv, "--run", str(tmp_path / "other")]) == 2
    assert "Traceback" not in capsys.readouterr().err
