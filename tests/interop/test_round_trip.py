"""Import, then export: every tensor comes back bit by bit, and the run in between works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.config import ConfigError, select
from dovetail.interop import import_hf, matching_family
from dovetail.layers.feed_forward import PlainFeedForward
from dovetail.layers.norms import LayerNorm
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.models import ModelFamily, families
from dovetail.models.llama import llama
from dovetail.module import parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement
from dovetail.run import Run
from dovetail.runtime import RunFolder, StoredWeights
from tests.interop.files import BFLOAT16, random_tensors, write_model, write_tokenizer
from tests.interop.tiny_llama import TINY


def read_all(folder: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        part = load_file(file)
        assert not part.keys() & arrays.keys()
        arrays |= part
    return arrays


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype, name
        assert array.tobytes() == np.ascontiguousarray(right[name]).tobytes(), name


@pytest.fixture
def source(llama_family: ModelFamily, tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "hf", TINY, random_tensors(llama_family, TINY))
    write_tokenizer(folder, 40)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [39, 7]}))
    return folder


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_comes_back_bit_by_bit(
    llama_family: ModelFamily, tmp_path: Path, dtype: Any, shards: int, tied: bool
) -> None:
    hf_config = {**TINY, "tie_word_embeddings": tied, "custom_key": 5}
    arrays = random_tensors(llama_family, hf_config, dtype)
    assert ("lm_head.weight" in arrays) is not tied
    write_model(tmp_path / "hf", hf_config, arrays, shards)
    made = import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    assert made.parameters == sum(array.size for array in arrays.values())
    Run(tmp_path / "run").export_hf(tmp_path / "out", progress=False)
    assert_same(arrays, read_all(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"]
    assert written["dtype"] == np.dtype(dtype).name
    assert written["custom_key"] == 5, "keys without a field of ours are written again"
    assert {key: written[key] for key in hf_config} == hf_config


def test_a_large_export_is_divided_with_an_index(source: Path, tmp_path: Path) -> None:
    import_hf(str(source), tmp_path / "run", progress=False)
    Run(tmp_path / "run").export_hf(tmp_path / "out", shard_bytes=6000, progress=False)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "out" / file)
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in read_all(source).values())
    assert_same(read_all(source), read_all(tmp_path / "out"))


def test_layers_of_different_types_share_the_one_that_holds_both(
    llama_family: ModelFamily, tmp_path: Path
) -> None:
    arrays = random_tensors(llama_family, TINY, np.float16)
    name = "model.layers.1.mlp.up_proj.weight"
    arrays[name] = arrays[name].astype(BFLOAT16)
    write_model(tmp_path / "hf", TINY, arrays)
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    weights = StoredWeights(tmp_path / "run" / "weights")
    path = "decoder/stack/layer/feed_forward/up/weight"
    assert weights.dtypes[path] == np.float32
    np.testing.assert_array_equal(weights.array(path)[1], arrays[name].T.astype(np.float32))


def test_base_models_omit_the_prefix_of_names(llama_family: ModelFamily, tmp_path: Path) -> None:
    hf_config = {**TINY, "tie_word_embeddings": True}
    arrays = random_tensors(llama_family, hf_config)
    short = {name.removeprefix("model."): array for name, array in arrays.items()}
    write_model(tmp_path / "hf", hf_config, short)
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    Run(tmp_path / "run").export_hf(tmp_path / "out", progress=False)
    assert_same(arrays, read_all(tmp_path / "out"))


def test_a_tied_head_may_be_written_and_must_be_the_embedding(
    llama_family: ModelFamily, tmp_path: Path
) -> None:
    hf_config = {**TINY, "tie_word_embeddings": True}
    arrays = random_tensors(llama_family, hf_config)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    write_model(tmp_path / "same", hf_config, arrays)
    import_hf(str(tmp_path / "same"), tmp_path / "run", progress=False)
    arrays["lm_head.weight"][0, 0] += 1
    write_model(tmp_path / "other", hf_config, arrays)
    with pytest.raises(ConfigError, match=r"lm_head.weight in .*the model of config.json has no"):
        import_hf(str(tmp_path / "other"), tmp_path / "run2", progress=False)


def test_tensors_that_carry_nothing_are_passed_over(
    llama_family: ModelFamily, tmp_path: Path
) -> None:
    arrays = random_tensors(llama_family, TINY)
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    write_model(tmp_path / "hf", TINY, arrays | more)
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)


def test_parameters_go_straight_to_their_shards(source: Path, tmp_path: Path) -> None:
    import_hf(str(source), tmp_path / "run", progress=False)
    folder = RunFolder(tmp_path / "run")
    config: Any = folder.config()
    specs = parameter_specs(config.model.build())
    mesh = MeshLayout.Config(fsdp=4, model=2).build().mesh(jax.devices())
    placement = Placement(mesh, AxisRules.Config().build())
    like = {
        path: jax.ShapeDtypeStruct(
            spec.shape, "bfloat16", sharding=placement.sharding(spec.axes, spec.shape, path)
        )
        for path, spec in specs.items()
    }
    found = Run(folder.path).read_arrays(like)
    assert found is not None
    step, arrays = found
    assert step == 0
    theirs = read_all(source)
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        ours = arrays["decoder/stack/layer/attention/query/weight"]
        assert ours.sharding == like["decoder/stack/layer/attention/query/weight"].sharding
        assert not ours.sharding.is_fully_replicated
        np.testing.assert_array_equal(np.asarray(ours[layer]), theirs[name].T.astype(BFLOAT16))


def test_an_imported_run_writes_text_also_where_it_was_moved_to(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "hf", str(source), "--to", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"] is True
    (tmp_path / "run").rename(tmp_path / "moved")
    argv = ["generate", str(tmp_path / "moved"), "--prompt", "!!", "--tokens", "4", "--json"]
    assert main([*argv, "--temperature", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 0


def test_export_reports_what_it_wrote(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_hf(str(source), tmp_path / "run", progress=False)
    argv = ["export", "hf", str(tmp_path / "run"), "--to", str(tmp_path / "out")]
    assert main([*argv, "--dtype", "bfloat16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["family"], report["step"], report["tensors"]) == ("llama", 0, 30)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= names
    assert {array.dtype for array in read_all(tmp_path / "out").values()} == {np.dtype(BFLOAT16)}
    for option, value in (("--shard-size", "many"), ("--dtype", "int8"), ("--dtype", "bfloat")):
        assert main([*argv[:-1], str(tmp_path / "other"), option, value]) == 2
        assert option in capsys.readouterr().err


def test_a_model_that_no_format_expresses_is_refused(
    llama_family: ModelFamily,
) -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, num_kv_heads=1, hidden=8)
    assert matching_family(config)[0] is llama_family
    odd = config.clone()
    odd.decoder.stack.layer.attention.scale = 0.123
    with pytest.raises(ConfigError, match=r"llama is the nearest.*\n.*attention.scale: 0.123"):
        matching_family(odd)


def test_an_unsupported_component_is_named() -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, num_kv_heads=1, hidden=8)
    config.decoder.stack.layer.feed_forward = PlainFeedForward.Config(hidden=8)
    with pytest.raises(ConfigError) as caught:
        matching_family(config)
    message = str(caught.value)
    assert "llama is the nearest" in message
    block = "decoder.stack.layer.feed_forward"
    assert f"{block} is a PlainFeedForward here and a FeedForward there" in message
    assert "dovetail.models.ModelFamily and --import" in message


def test_differences_inside_a_replaced_component_are_omitted() -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, num_kv_heads=1, hidden=8)
    config.decoder.norm = LayerNorm.Config()
    with pytest.raises(ConfigError) as caught:
        matching_family(config)
    message = str(caught.value)
    assert "decoder.norm: dovetail.layers:LayerNorm() -> " in message
    assert "decoder.norm.bias" not in message
    assert "Change the model to what the format supports" in message


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_derived_values_may_be_explicit(llama_family: ModelFamily, kv_heads: int | None) -> None:
    """Two key-value heads of two heads are what None means, and one is not."""
    config = llama(
        vocab_size=8, width=8, num_layers=1, num_heads=2, num_kv_heads=kv_heads, hidden=8
    )
    config.decoder.stack.layer.attention.head_width = 4
    family, hf_config = matching_family(config)
    assert family is llama_family
    assert hf_config["num_key_value_heads"] == (kv_heads or 2)


def test_the_family_may_be_named(llama_family: ModelFamily) -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, hidden=8)
    assert matching_family(config, only="llama")[0] is llama_family
    with pytest.raises(ConfigError, match="gpt2"):
        matching_family(config, only="gpt2")
    with pytest.raises(ConfigError, match=r"no family 'lama'. Did you mean 'llama'"):
        matching_family(config, only="lama")


def test_what_does_not_change_the_function_does_not_stop_an_export(
    llama_family: ModelFamily,
) -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, num_kv_heads=1, hidden=8)
    config.decoder.stack.unroll = 1
    config.decoder.stack.layer.attention_residual.dropout.rate = 0.1
    config.decoder.stack.layer.dtype = "bfloat16"
    assert matching_family(config)[0] is llama_family


def test_llama_cannot_express_partial_rotary_positions() -> None:
    model = families()["qwen3"].from_hf(families()["qwen3"].tiny())
    model = select(model, RotaryEmbedding).set(fraction=0.5)
    with pytest.raises(ConfigError, match=r"(?s)No known format .*positions\.fraction"):
        matching_family(model, only="qwen3")
