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
from dovetail.module import sequence_batch_spec, token_batch
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


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    return digits.train(folder=tmp_path_factory.mktemp("digits") / "run", progress=False)


def loss_curve(run):
    return [entry["loss"] for entry in run.metrics() if "loss" in entry]


def test_it_learns_to_read_digits(run):
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


WORDS = ("input=TokenInput", "input.sequence_length=8", "input.batch_size=8", "evaluators={}")
MISSING = "VisionTransformer reads `images` of a batch, but it got TokenBatch, which has tokens, "


def test_a_model_that_reads_what_the_batch_lacks_is_one_sentence(digits, tmp_path):
    words = digits.override(*WORDS)
    with pytest.raises(dovetail.Error, match=MISSING):
        words.train(folder=tmp_path / "run", progress=False)
    with pytest.raises(dovetail.Error, match=MISSING):
        words.plan("tpu-v5e-8", compile=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "digits-vit", *WORDS],
        ["train", "digits-vit", *WORDS, "--dry-run", "--target", "tpu-v5e-8"],
        ["plan", "digits-vit", *WORDS, "--analytic", "--target", "tpu-v5e-8"],
        ["config", "sharding", "digits-vit", *WORDS, "--target", "tpu-v5e-8"],
    ],
    ids=["train", "dry run", "plan", "sharding"],
)
def test_the_command_line_names_the_field_that_the_batch_lacks(
    digits, argv, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert MISSING in capsys.readouterr().err


def test_a_loss_of_a_batch_without_a_field(run):
    with pytest.raises(dovetail.Error, match=MISSING):
        run.loss([1, 2, 3])


def test_an_evaluator_whose_batch_lacks_a_field(run, monkeypatch):
    class HeldOutWords:
        num_batches = 1

        def held_out(self, num_batches):
            return self

        def spec(self):
            return sequence_batch_spec(8, 4)

        def batch(self, index, rows=None):
            return token_batch(np.zeros((8, 5), np.int32))

    monkeypatch.setattr(run.trainer, "input", HeldOutWords())
    with pytest.raises(dovetail.Error, match=MISSING):
        run.evaluate(["held_out"])
