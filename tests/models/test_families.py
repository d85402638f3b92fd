"""Every family: config.json round trip, weight mapping, and golden logits.

The golden logits were made by transformers from the same weights; tests/parity keeps them true.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.experiments.published import published_sizes
from dovetail.generate import Generator, Greedy
from dovetail.layers import TokenContext, arrange, layers_of
from dovetail.models import families, find_family
from dovetail.models.hf import mask_from_window
from dovetail.module import functional, parameter_specs
from tests.models.formula import TOKENS, filled

GOLDEN = Path(__file__).parent / "golden"
SHOWN = 8  # logits of the vocabulary

every_family = pytest.mark.parametrize("name", families())


@functools.cache
def model(name: str) -> Any:
    family = families()[name]
    module = family.from_hf(family.tiny()).build()
    return module, *filled(family, module)


@functools.cache
def logits(name: str) -> np.ndarray:
    module, params, variables = model(name)
    tokens = jnp.asarray(TOKENS)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    context = TokenContext(positions, jnp.ones_like(tokens))

    @jax.jit
    def run(params: Any, variables: Any) -> jax.Array:
        options = {"method": "all_logits", "losses": "discard", "variables": variables}
        return functional(module, params, (tokens, context), **options)[0]

    return np.asarray(run(params, variables))


@every_family
def test_logits_are_those_of_transformers(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())["logits"]
    np.testing.assert_allclose(logits(name)[0, :, :SHOWN], golden, atol=1e-4)


@every_family
def test_decoding_token_by_token_finds_the_same_tokens(name: str) -> None:
    module, params, variables = model(name)
    length = TOKENS.shape[1]
    generator = Generator(module.config, params, length=length + 1, variables=variables)
    for end in (1, length - 1, length):
        prompt = TOKENS[0, :end].tolist()
        (found,) = generator.generate([prompt], max_new_tokens=1, sampler=Greedy.Config())
        assert found.tokens == [int(logits(name)[0, end - 1].argmax())]


@every_family
def test_config_json_is_written_as_it_was_read(name: str) -> None:
    family = families()[name]
    config = family.from_hf(family.tiny())
    written = json.loads(json.dumps(family.to_hf(config)))
    assert family.from_hf(written) == config
    assert family.to_hf(family.from_hf(written)) == written
    assert from_text(to_text(config)) == config


@pytest.mark.parametrize("name", published_sizes())
def test_every_size_has_its_published_number_of_parameters(name: str) -> None:
    size = published_sizes()[name]
    family = families()[size.family]
    config = family.from_hf(size.values)
    specs = parameter_specs(config.build())
    assert sum(spec.size for spec in specs.values()) == size.parameters
    assert family.from_hf(family.to_hf(config)) == config


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("llama2-7b", 6_738_415_616),
        ("mixtral-8x7b", 12_879_925_248),
        ("qwen3-30b-a3b", 3_353_032_704),
    ],
)
def test_active_parameters(name: str, active: int) -> None:
    size = published_sizes()[name]
    specs = parameter_specs(families()[size.family].from_hf(size.values).build())
    assert sum(spec.active_size for spec in specs.values()) == active


def test_an_unknown_model_type_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no family for 'lama'.*Did you mean 'llama'"):
        find_family("lama")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mistral", {"sliding_window": ...}, "'sliding_window' is left out"),
        ("gemma2", {"attn_logit_softcapping": ...}, "'attn_logit_softcapping' is left out"),
        ("gpt-oss", {"rope_scaling": ...}, "'rope_scaling' is left out"),
        ("deepseek-v3", {"q_lora_rank": ...}, "'q_lora_rank' is left out"),
        ("gpt-oss", {"rope_scaling": None}, r"'rope_scaling' is left out or null.*\"default\""),
        ("deepseek-v3", {"n_routed_experts": ...}, "'n_routed_experts' or 'num_local_experts'"),
        ("gpt2", {"n_embd": ...}, "'n_embd' is missing"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("phi3", {"rope_scaling": {"type": "su"}}, "rope_type: the rotary scaling 'su'"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "expected 'default'"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn"}}, "'factor' of the rotary .* is left out"),
        ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": None}}, "'factor' .* is null"),
        ("llama", {"rope_theta": None}, "'rope_theta' is missing"),
        ("olmo2", {"rms_norm_eps": ...}, "'rms_norm_eps' is missing"),
        ("gpt-oss", {"layer_types": ["chunked_attention"] * 4}, "got 'chunked_attention'"),
        ("gemma3", {"layer_types": ["full_attention"]}, "each of 8 layers, got 1 entries"),
        ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rotary scaling 'longrope'"),
        ("llama", {"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str
) -> None:
    family = families()[name]
    values = {**family.tiny(), **changes}
    values = {key: value for key, value in values.items() if value is not ...}
    with pytest.raises(ConfigError, match=message):
        family.from_hf(values)


def test_a_missing_key_has_the_default_of_its_family() -> None:
    """What transformers fills in; tests/parity goes through all keys."""
    expected = {"mistral": 8, "mixtral": 8, "qwen2": 32, "gemma2": 4, "gpt-oss": 8, "llama": None}
    for name, heads in expected.items():
        family = families()[name]
        values = family.tiny() | {"num_attention_heads": 16}
        del values["num_key_value_heads"]
        layer = layers_of(family.from_hf(values).decoder.stack)[0]
        assert layer.attention.num_kv_heads == heads, name


def test_gpt_oss_without_scaling_says_so() -> None:
    """Nothing written would be read as the scaling of the published models."""
    family = families()["gpt-oss"]
    config = family.from_hf(family.tiny() | {"rope_scaling": {"rope_type": "default"}})
    assert family.to_hf(config)["rope_scaling"] == {"rope_type": "default"}
    assert family.from_hf(family.to_hf(config)) == config


def test_a_mixture_of_windows_is_refused_where_the_format_has_one() -> None:
    family = families()["qwen3-moe"]
    config = family.from_hf(family.tiny())
    layers = layers_of(config.decoder.stack)
    layers[-1] = layers[-1].clone()
    layers[-1].attention.mask = mask_from_window(None)
    mixed = config.clone(decoder=config.decoder.clone(stack=arrange(layers)))
    with pytest.raises(ConfigError, match=r"one window for all layers, got \[5, 5, 5, None\]"):
        family.to_hf(mixed)


def test_no_family_imports_another() -> None:
    """So that one can be taken away, or be a package of its own."""
    homes = {family.name: family.from_hf.__module__ for family in families().values()}
    assert len(set(homes.values())) == len(homes), "a file each"
    for name, home in homes.items():
        # Not inspect.getfile: in the tests a function is wrapped by its checks.
        source = Path(sys.modules[home].__file__ or "").read_text()
        imported = set(re.findall(r"^from (dovetail\.models[\w.]*) import", source, re.MULTILINE))
        assert "dovetail.models.causal_lm" in imported
        assert not imported & set(homes.values()), f"{name} imports another family"


def test_keys_of_other_families_are_ignored() -> None:
    """As transformers does: a Llama that says these computes as one that does not."""
    family = families()["qwen3"]
    plain = family.tiny()
    foreign = plain | {"partial_rotary_factor": 0.5, "mlp_bias": True}
    assert family.from_hf(foreign) == family.from_hf(plain)
