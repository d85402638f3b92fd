"""A family of another modality, of an outside package: listed, planned, trained and exchanged."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.experiments import find_experiment
from dovetail.interop import import_hf
from dovetail.interop.family_match import matching_family
from dovetail.models import families
from dovetail.module import parameter_specs
from tests.registries import restored_registries

PACKAGE = "tests.outside.vision_family"
SMALL = (
    "model.stack.num_layers=2",
    "input.batch_size=16",
    "learner.schedule=ConstantSchedule",
    "learner.schedule.peak=3e-3",
)


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[Any]:
    """The package, as `--import` loads it."""
    with restored_registries():
        yield importlib.import_module(PACKAGE)
    del sys.modules[PACKAGE]


@pytest.fixture(scope="module")
def run(package: Any, tmp_path_factory: Any) -> dovetail.Run:
    """A run of a small model."""
    experiment = dovetail.experiment("drawn-vit-small", imports=[PACKAGE])
    small = experiment.override(*SMALL)
    folder = tmp_path_factory.mktemp("vision") / "run"
    return small.train(steps=20, folder=folder, progress=False)


def test_its_sizes_have_their_number_of_parameters(package: Any) -> None:
    for name, size in package.SIZES.items():
        config = find_experiment(name).config()
        specs = parameter_specs(config.build().model)
        assert sum(spec.size for spec in specs.values()) == size.parameters, name
        assert (config.model.dtype, config.input.batch_size) == ("bfloat16", 256)
        assert package.to_hf(config.model) == size.values
        assert config.evaluators == {}, "its input has no held-out data"


def test_its_tiny_form_is_an_experiment(package: Any) -> None:
    config = find_experiment("drawn-vit-small").tiny()
    assert config.model == package.from_hf(package.tiny())
    assert isinstance(config.input, package.Bars.Config)
    assert (config.steps, config.input.batch_size) == (4, 8)


def test_it_is_listed_and_planned(capsys: Any) -> None:
    assert main(["config", "list", "drawn-vit", "--import", PACKAGE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "drawn-vit"
    assert [line.split()[0] for line in lines[1:3]] == ["drawn-vit-large", "drawn-vit-small"]
    argv = ["drawn-vit-large", "--import", PACKAGE, "--target", "tpu-v5e-8"]
    assert main(["plan", *argv, "--analytic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"]
    assert main(["config", "params", *argv]) == 0
    assert "total" in capsys.readouterr().out


def test_it_trains(run: dovetail.Run) -> None:
    losses = [entry["loss"] for entry in run.metrics() if "loss" in entry]
    assert losses[-1] < losses[0] - 0.3
    assert "images_per_second" in run.metrics()[-1]


def test_its_files_are_written_and_read(run: dovetail.Run, tmp_path: Any) -> None:
    run.export_hf(tmp_path / "out", progress=False)
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["model_type"], written["num_labels"]) == ("drawn_vit", 10)
    imported = dovetail.import_hf(
        tmp_path / "out", tmp_path / "again", progress=False, imports=[PACKAGE]
    )
    assert json.loads((imported.path / "run.json").read_text())["imports"] == [PACKAGE]
    images = run.trainer.input.batch(0).images
    np.testing.assert_allclose(imported.model(images), run.model(images), atol=2e-2)
    for path, array in run.params.items():
        np.testing.assert_array_equal(imported.params[path], array)
    again = imported.export_hf(tmp_path / "twice", progress=False)
    assert (again.family, again.tokenizer) == ("drawn-vit", False)
    with pytest.raises(dovetail.Error, match="Bars, has no tokenizer"):
        imported.generate("a digit")


def test_the_command_line_asks_for_no_tokenizer(run: Any, tmp_path: Any, capsys: Any) -> None:
    folder = str(tmp_path / "out")
    assert main(["export", "hf", str(run.path), "--to", folder, "--import", PACKAGE]) == 0
    argv = ["import", "hf", folder, "--to", str(tmp_path / "run"), "--import", PACKAGE]
    assert main(argv) == 0
    shown = capsys.readouterr()
    assert "drawn-vit: " in shown.out
    assert "tokenizer" not in shown.err


def test_a_value_that_is_derived_is_the_same_model(package: Any) -> None:
    """The format has no number of KV heads; that of the model is the number of heads."""
    config = find_experiment("drawn-vit-small").config().model
    config.stack.layer.attention.num_kv_heads = 4
    assert matching_family(config)[0] is package.FAMILY
    config.stack.layer.attention.num_kv_heads = 2
    with pytest.raises(ConfigError, match=r"drawn-vit is the nearest.*\n.*num_kv_heads: 2 -> None"):
        matching_family(config)


def test_families_of_other_models_refuse_it(run: dovetail.Run, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="models are built by CausalLM, not VisionTransformer"):
        run.export_hf(tmp_path / "out", family="llama", progress=False)


def test_other_families_are_as_before() -> None:
    assert families()["llama"].input is None
    assert {name for name, family in families().items() if family.input} == {"drawn-vit"}


def test_text_needs_the_length_of_its_sequences(tmp_path: Any) -> None:
    from dovetail.experiments import register_sizes

    values = families()["llama"].tiny()
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    file = tmp_path / "llama.toml"
    recipe = "{ batch_size = 8, steps = 4, peak = 1e-3, warmup_steps = 1 }"
    head = f'[no-length]\nabout = "x"\nparameters = 1\nrecipe = {recipe}\n[no-length.values]'
    flat = [line for line in lines if "{" not in line]
    file.write_text("\n".join([head, *flat]))
    register_sizes(file)
    with pytest.raises(ConfigError, match="a recipe of token sequences has a sequence_length"):
        find_experiment("no-length").config()


def test_import_refuses_a_model_type_of_no_family(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "drawn_vitt"}')
    with pytest.raises(ConfigError, match="Did you mean 'drawn_vit'"):
        import_hf(str(tmp_path), tmp_path / "run", progress=False)
