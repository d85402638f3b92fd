"""Fine-tuning with adapters: what is adapted, what is trained, and what is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.config import ConfigError, apply_modifier, from_text, select, to_text
from dovetail.experiments import experiments
from dovetail.interop import import_hf, unwrapped
from dovetail.layers import Linear, PrecisionSensitive
from dovetail.layers.linear.adapters import LoRA
from dovetail.learner import Ema
from dovetail.parallel import MeshLayout
from dovetail.run import Run
from dovetail.runtime import StoredWeights, abstract_state
from tests.experiments.tiny_models import every_tiny_model
from tests.interop.files import random_tensors, write_model, write_tokenizer
from tests.interop.tiny_llama import TINY, ensure_llama

VOCABULARY = 258


def tiny(name: str = "tiny-lm") -> Any:
    config = experiments()[name].tiny()
    return config.set(steps=2, writers={}, evaluators={}, mesh=MeshLayout.Config(data=-1, fsdp=1))


@every_tiny_model()
def test_every_linear_map_is_adapted_but_those_that_stay_exact(name: str) -> None:
    config = experiments()[name].tiny()
    adapted = apply_modifier(config, "lora:rank=2,alpha=3.0")
    inside = {path for path in select(adapted, Linear).found if path.endswith(".base")}
    alone = select(adapted, Linear).found.keys() - inside
    exact = select(adapted, PrecisionSensitive).found
    assert inside
    assert all(any(path.startswith(f"{part}.") for part in exact) for path in alone)
    assert all((each.rank, each.alpha) == (2, 3.0) for each in select(adapted, LoRA))
    assert unwrapped(adapted.model) == config.model
    assert from_text(to_text(adapted)) == adapted


# The quick one has experts, a router and norms on queries; tiny-lm is trained below, too.
@every_tiny_model("qwen3-30b-a3b")
def test_only_the_adapters_are_trained(name: str, tmp_path: Path) -> None:
    config = apply_modifier(tiny(name), "lora:rank=2")
    config.learner.set(ema=Ema.Config(), weight_decay=0.1)
    trainer = config.build()
    before = trainer.program().initialize()
    before = {path: np.asarray(array) for path, array in before.params.items()}
    trainer.train(tmp_path)
    program = trainer.program()
    like = abstract_state(program.state_shapes, program.state_shardings)
    _, after = trainer.checkpointer.restore(like)
    adapters = {path for path in before if path.endswith(("/lora_a", "/lora_b"))}
    assert 0 < len(adapters) < len(before)
    leaves = jax.tree_util.tree_leaves_with_path(after.optimizer)
    kept = {getattr(key, "key", None) for place, _ in leaves for key in place}
    assert kept & before.keys() == set(after.ema) == adapters
    for path, array in before.items():
        assert (array.tobytes() != np.asarray(after.params[path]).tobytes()) is (path in adapters)


def test_what_was_frozen_stays_frozen() -> None:
    config = tiny()
    config.learner.frozen = ("decoder/stack/layer/0/*",)
    adapted = apply_modifier(config, "lora")
    assert adapted.learner.frozen == ("*", "!*/lora_a", "!*/lora_b", "decoder/stack/layer/0/*")


def test_a_model_is_adapted_once() -> None:
    with pytest.raises(
        ConfigError, match=r"--with lora does not apply .* model\..* is Adapter already"
    ):
        apply_modifier(apply_modifier(tiny(), "lora"), "lora")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model as transformers writes it, imported, and some texts."""
    folder = tmp_path_factory.mktemp("work")
    said = {**TINY, "vocab_size": VOCABULARY + 2}
    write_model(folder / "hf", said, random_tensors(ensure_llama(), said))
    write_tokenizer(folder / "hf", VOCABULARY)
    import_hf(str(folder / "hf"), folder / "run", progress=False)
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text(f"line {number}\n" * (number + 2))
    train(folder, "tuned")
    return folder


def train(work: Path, name: str, *more: str) -> None:
    argv = [
        *("train", "tiny-lm", "--with", f"from-run:path={work / 'run'}", "--with", "lora:rank=4"),
        *("input.corpus=TextFiles", f"input.corpus.files={work}/texts/*.txt"),
        *("input.sequence_length=16", "input.batch_size=8", "mesh.fsdp=1", "mesh.data=-1"),
        *("evaluators={}", "learner.schedule.peak=1e-2", "learner.schedule.warmup_steps=0"),
        *("--steps", "3", "--run", str(work / name), *more),
    ]
    assert main(argv) == 0


def test_an_imported_model_is_adapted_and_writes_text(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    argv = ["generate", str(work / "tuned"), "--prompt", "line", "--tokens", "4", "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_a_merged_export_has_the_names_of_the_base(work: Path, tmp_path: Path) -> None:
    assert main(["export", "hf", str(work / "tuned"), "--to", str(tmp_path / "out")]) == 0
    before = load_file(work / "hf" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        moved = np.abs(after[name] - array).max() > 0
        assert moved is np.bool_(name.endswith("_proj.weight")), name
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "lora" not in str(said).lower()


def test_an_adapter_is_written_alone(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    argv = ["export", "hf", str(work / "tuned"), "--to", str(tmp_path / "out"), "--adapter"]
    assert main([*argv, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["family"], made["step"], made["tensors"]) == ("llama", 3, 3 * 7 * 2)
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    said = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (said["peft_type"], said["r"], said["lora_alpha"]) == ("LORA", 4, 16)
    assert said["base_model_name_or_path"] == str(work / "hf")
    projections = ("q", "k", "v", "o", "gate", "up", "down")
    assert said["target_modules"] == sorted(f"{name}_proj" for name in projections)
    arrays = load_file(tmp_path / "out" / "adapter_model.safetensors")
    name = "base_model.model.model.layers.2.mlp.down_proj"
    assert arrays[f"{name}.lora_A.weight"].shape == (4, 24)
    assert arrays[f"{name}.lora_B.weight"].shape == (16, 4)
    assert main(["export", "hf", str(work / "tuned"), "--to", str(tmp_path / "merged")]) == 0
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for weight, base in load_file(work / "hf" / "model.safetensors").items():
        pieces = f"base_model.model.{weight.removesuffix('.weight')}"
        if f"{pieces}.lora_A.weight" in arrays:
            down, up = (arrays[f"{pieces}.lora_{part}.weight"] for part in "AB")
            np.testing.assert_allclose(merged[weight], base + 4 * up @ down, atol=1e-6)


def test_adapters_of_which_the_base_has_moved_are_not_written_alone(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(work, "moved", 'learner.frozen=("decoder/stack/*/attention/*",)')
    argv = ["export", "hf", str(work / "moved"), "--to", str(tmp_path / "out"), "--adapter"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "is not an adapter, but was trained" in said
    assert "leave out --adapter" in said
    assert not (tmp_path / "out").exists()
    assert main(argv[:-1]) == 0, "merged, it is the model all the same"


def test_a_run_without_adapters_has_none_to_write(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["export", "hf", str(work / "run"), "--to", str(tmp_path / "out"), "--adapter"]
    assert main(argv) == 2
    assert "has no adapters. Train with `--with lora:rank=8`" in capsys.readouterr().err


def test_the_order_of_modifiers_matters_and_is_told(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model of a run takes the place of the adapted one."""
    options = ("--with", "lora", "--with", f"from-run:path={work / 'run'}")
    argv = ["train", "tiny-lm", *options, "--steps", "1", "--run", str(tmp_path / "other")]
    assert main(argv) == 2
    assert "'!*/lora_a' matches no parameter" in capsys.readouterr().err


def test_the_base_stays_as_it_was_imported(work: Path) -> None:
    weights = StoredWeights(work / "run" / "weights")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {
        path: jax.ShapeDtypeStruct(shape, weights.dtypes[path], sharding=device)
        for path, shape in weights.shapes.items()
    }
    found = Run(work / "tuned").read_arrays(like)
    assert found is not None
    step, arrays = found
    assert (step, arrays.keys()) == (3, weights.shapes.keys())
    for path, array in arrays.items():
        np.testing.assert_array_equal(array, weights.read_at(path, ()), strict=True)
