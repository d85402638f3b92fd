"""Adapters leave a run merged, whatever the family; alone where PEFT has a form for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.config import REQUIRED, ConfigError, ConfigOf, replace, wraps
from dovetail.interop import import_hf, unwrapped
from dovetail.layers import Attention, Linear, TokenMap
from dovetail.layers.linear.adapters import LoRA
from dovetail.layers.linear.linear import NormedLinear
from dovetail.learner import ParameterGroup
from dovetail.models import families
from dovetail.module import Module, parameter
from dovetail.run import Run
from dovetail.runtime import RunFolder
from tests.interop.adapted import adapted_run, logits, with_lora
from tests.interop.files import random_tensors, write_model

IDS = np.random.default_rng(1).integers(3, 40, (2, 7))

# Why not every family's adapters can be written alone.
REFUSED = {
    "deepseek-v3": "experts",
    "gpt-oss": "experts",
    "gpt2": "fuses several",
    "mixtral": "experts",
    "phi3": "fuses several",
    "qwen3-moe": "experts",
}


def imported(name: str, folder: Path) -> Path:
    family = families()[name]
    hf_config = {**family.tiny(), "model_type": family.model_type}
    write_model(folder / "hf", hf_config, random_tensors(family, hf_config))
    import_hf(str(folder / "hf"), folder / "base", progress=False)
    return folder / "base"


@pytest.mark.parametrize("name", families())
def test_a_merged_model_computes_the_same(name: str, tmp_path: Path) -> None:
    base = imported(name, tmp_path)
    run = adapted_run(base, tmp_path / "run")
    assert Run(run).export_hf(tmp_path / "out", progress=False).family == name
    import_hf(str(tmp_path / "out"), tmp_path / "merged", progress=False)
    plain: Any = RunFolder(base).config()
    merged: Any = RunFolder(tmp_path / "merged").config()
    assert merged.model == plain.model
    ours = logits(run, IDS)
    np.testing.assert_allclose(logits(tmp_path / "merged", IDS), ours, atol=2e-4)
    assert np.abs(ours - logits(base, IDS)).max() > 0.01, "the adapters do something"


@pytest.mark.parametrize("name", families())
def test_adapters_alone_fit_plain_linear_maps_only(name: str, tmp_path: Path) -> None:
    run = adapted_run(imported(name, tmp_path), tmp_path / "run")
    if name not in REFUSED:
        assert Run(run).export_adapter(tmp_path / "out").family == name
        return
    with pytest.raises(ConfigError, match=rf"--adapter: .* {REFUSED[name]}.*leave out --adapter"):
        Run(run).export_adapter(tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Scaled(Module):
    """Another mergeable wrapper, which interop has never seen: a learned scale of the output."""

    class Config(Module.Config["Scaled"]):
        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        base: ConfigOf[TokenMap] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        sizes = {"in_features": config.in_features, "out_features": config.out_features}
        self.base = config.base.clone(**sizes).build()
        self.adapter = parameter((config.out_features,), (config.out_axis,))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.base(x) * self.adapter

    def merged(self, name: str, value: np.ndarray, own: Mapping[str, np.ndarray]) -> np.ndarray:
        return value * own["adapter"]


@pytest.mark.parametrize("order", [(Scaled, LoRA), (LoRA, Scaled)])
def test_any_mergeable_layer_is_merged_from_the_inside_out(
    order: tuple[Any, Any], tmp_path: Path
) -> None:
    """Biases are scaled too; a scaled product and an unscaled one differ."""

    def adapt(config: Any) -> Any:
        once = replace(config, Linear, order[0].Config())
        return replace(once, order[0], order[1].Config())

    base = imported("qwen2", tmp_path)
    run = adapted_run(base, tmp_path / "run", adapt)
    adapted: Any = RunFolder(run).config()
    plain: Any = RunFolder(base).config()
    assert unwrapped(adapted.model) == plain.model
    if order == (Scaled, LoRA):  # an adapter beside a map that is not a plain Linear
        with pytest.raises(ConfigError, match="Scaled is not a Linear"):
            Run(run).export_hf(tmp_path / "out", progress=False)
        return
    Run(run).export_hf(tmp_path / "out", progress=False)
    import_hf(str(tmp_path / "out"), tmp_path / "merged", progress=False)
    np.testing.assert_allclose(logits(tmp_path / "merged", IDS), logits(run, IDS), atol=1e-5)
    with pytest.raises(
        ConfigError, match=r"--adapter: .* is a Scaled, which PEFT does not support"
    ):
        Run(run).export_adapter(tmp_path / "alone")


def test_rank_and_alpha_patterns(tmp_path: Path) -> None:
    """Attention alone, and a larger rank for queries."""

    def adapt(config: Any) -> Any:
        def attention(old: Any) -> Any:
            adapted = replace(old, Linear, LoRA.Config(rank=2, alpha=2.0))
            return adapted.set(query=adapted.query.clone(rank=4, alpha=2.0))

        adapted = replace(config, Attention, attention)
        return adapted.set(learner=adapted.learner.clone(frozen=("*", "!*/lora_?")))

    run = adapted_run(imported("llama", tmp_path), tmp_path / "run", adapt)
    Run(run).export_adapter(tmp_path / "out", dtype="bfloat16")
    adapter_config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert adapter_config["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    queries = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    assert (adapter_config["r"], adapter_config["rank_pattern"]) == (2, dict.fromkeys(queries, 4))
    assert (adapter_config["lora_alpha"], adapter_config["alpha_pattern"]) == (2, {})
    arrays = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {array.dtype.name for array in arrays.values()} == {"bfloat16"}


@pytest.mark.parametrize("frozen", [True, False])
def test_bases_may_be_frozen_by_groups(tmp_path: Path, frozen: bool) -> None:
    def adapt(config: Any) -> Any:
        bases = ParameterGroup.Config(pattern="*[!ab]", frozen=frozen)  # all but lora_a, lora_b
        adapted = with_lora(config)
        return adapted.set(learner=adapted.learner.clone(frozen=(), groups=(bases,)))

    run = Run(adapted_run(imported("llama", tmp_path), tmp_path / "run", adapt))
    if frozen:
        assert run.export_adapter(tmp_path / "out").family == "llama"
        return
    with pytest.raises(ConfigError, match="is not an adapter, but was trained"):
        run.export_adapter(tmp_path / "out")


def test_an_adapter_without_a_base_of_its_own_is_refused(tmp_path: Path) -> None:
    def adapt(config: Any) -> Any:
        return with_lora(type(config)(model=config.model, input=config.input, steps=1))

    run = adapted_run(imported("llama", tmp_path), tmp_path / "run", adapt)
    with pytest.raises(ConfigError, match=r"was not started from another run.*leave out --adapter"):
        Run(run).export_adapter(tmp_path / "out")


def test_an_adapter_around_a_norm_is_refused(tmp_path: Path) -> None:
    def adapt(config: Any) -> Any:
        adapted = replace(config, NormedLinear, LoRA.Config())
        return adapted.set(learner=adapted.learner.clone(frozen=("*", "!*/lora_?")))

    run = adapted_run(imported("qwen3", tmp_path), tmp_path / "run", adapt)
    opened = Run(run)
    for export in (opened.export_hf, opened.export_adapter):
        with pytest.raises(ConfigError, match="NormedLinear is not a Linear"):
            export(tmp_path / "out")


def test_adapters_are_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["export", "hf", "run", "--to", "out", "--adapter", "--shard-size", "1GB"]
    assert main(argv) == 2
    assert "--shard-size: adapters are one file" in capsys.readouterr().err
