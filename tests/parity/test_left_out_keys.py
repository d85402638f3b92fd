"""A config.json that leaves a key out, or sets it to null, is read as transformers reads it.

Published files leave out the keys that came later, and transformers fills in defaults of its own.
For every key of a tiny model we must either refuse by name, or find the model that we find in the
config.json that transformers makes of the shortened one. Positions are compared as numbers too.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError

from dovetail.config import ConfigError, to_text
from dovetail.layers import Attention, layers_of
from dovetail.layers.attention.latent import LatentAttention
from dovetail.models import ModelFamily, families
from dovetail.models.hf import window_of

transformers.utils.logging.set_verbosity_error()

Values = dict[str, Any]
REFUSALS = (KeyError, TypeError, ValueError, StrictDataclassError)
NESTED = ("rope_parameters", "rope_scaling")


def without(values: Values, key: str) -> Values:
    return {name: value for name, value in values.items() if name != key}


def with_null(values: Values, key: str) -> Values:
    return values | {key: None}


def as_written(family: ModelFamily) -> Values:
    """The tiny model's config.json, as transformers writes it.

    What every config of transformers has, a model or not, is left out here and filled in there.
    """
    about_any = transformers.PreTrainedConfig().to_dict()
    written = filled_in(family, family.tiny())
    return {key: value for key, value in written.items() if key not in about_any}


def as_published(family: ModelFamily) -> Values:
    """The older form: theta and scaling, few keys. More heads, so that no default is theirs."""
    heads = "n_head" if "n_head" in family.tiny() else "num_attention_heads"
    return family.tiny() | {heads: 8}


def settings_of(family: ModelFamily, values: Values) -> Any:
    """Returns transformers' own object; it changes what it is given, so it gets a copy."""
    given = without(copy.deepcopy(values), "model_type")
    return transformers.AutoConfig.for_model(family.model_type, **given)


def filled_in(family: ModelFamily, values: Values) -> Values:
    """Returns what transformers makes of a config.json, as it would be written."""
    written: Values = json.loads(json.dumps(settings_of(family, values).to_dict()))
    return written


every_family = pytest.mark.parametrize("name", families())
every_form = pytest.mark.parametrize("form", [as_written, as_published])
both_ways = pytest.mark.parametrize("change", [without, with_null])


@every_family
@every_form
@both_ways
def test_every_key(
    name: str, form: Callable[[ModelFamily], Values], change: Callable[[Values, str], Values]
) -> None:
    family = families()[name]
    values = form(family)
    wrong = {key: difference(family, change(values, key), key) for key in values}
    assert not {key: what for key, what in wrong.items() if what}


@every_family
@every_form
def test_all_keys_that_we_do_not_insist_on(
    name: str, form: Callable[[ModelFamily], Values]
) -> None:
    """Left out together: what one key means may depend on whether another is there."""
    family = families()[name]
    values = form(family)
    for key in list(values):
        if ours(family, without(values, key))[0] is not None:
            values = without(values, key)
    assert not difference(family, values)


@every_family
@every_form
@both_ways
def test_every_nested_key(
    name: str, form: Callable[[ModelFamily], Values], change: Callable[[Values, str], Values]
) -> None:
    family = families()[name]
    cases = nested(form(family), change)
    wrong = {at: different_positions(family, values, at) for at, values in cases.items()}
    assert not {at: what for at, what in wrong.items() if what}


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_model_deeper_than_the_layers_without_a_window(name: str) -> None:
    """The tiny ones are too shallow to show where windows begin."""
    family = families()[name]
    values = without(as_published(family) | {"num_hidden_layers": 30}, "max_window_layers")
    found, _ = ours(family, values)
    windows = [window_of(layer.attention.mask) for layer in layers_of(found.decoder.stack)]
    assert windows == [None] * 28 + [5] * 2
    assert not difference(family, values, "max_window_layers")


LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "changes",
    [
        {"original_max_position_embeddings": 8},
        {"rope_scaling": LINEAR, "rope_theta": 77.0},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 77.0},
    ],
)
def test_rotary_parameters_that_stand_twice(name: str, changes: Values) -> None:
    family = families()[name]
    assert not different_positions(family, as_written(family) | changes, "")


@pytest.mark.parametrize("name", [n for n, one in families().items() if "rope_theta" in one.tiny()])
def test_positions_that_we_write_unscaled(name: str) -> None:
    """A family's default may be a scaling, so that none must be written too."""
    family = families()[name]
    plain = family.from_hf(family.tiny() | {"rope_scaling": {"rope_type": "default"}})
    assert not different_positions(family, family.to_hf(plain), "")


def ours(family: ModelFamily, values: Values) -> tuple[Any, str]:
    """Returns our config, or None and why it is refused."""
    return _ours(family.name, json.dumps(values, sort_keys=True))


@functools.cache  # most keys have their defaults, so transformers makes the same of many files
def _ours(name: str, text: str) -> tuple[Any, str]:
    try:
        return families()[name].from_hf(json.loads(text)), ""
    except ConfigError as error:
        return None, str(error)


def difference(family: ModelFamily, values: Values, key: str = "") -> str:
    """Says how we read a config.json otherwise than transformers; "" where we do not."""
    found, refusal = ours(family, values)
    if found is None:
        return "" if key in refusal else f"the refusal does not name the key: {refusal}"
    try:
        full = filled_in(family, values)
    except REFUSALS as error:
        # Releases differ in where they accept null, so null may mean "left out" to us.
        return "" if key in values else f"transformers refuses: {error!r}"
    expected, refusal = ours(family, full)
    if expected is None:
        return f"read, but refused when transformers wrote it: {refusal}"
    return lines_that_differ(to_text(found), to_text(expected))


def lines_that_differ(found: str, expected: str) -> str:
    lines = set(found.splitlines()) ^ set(expected.splitlines())
    return "\n".join(sorted(lines))


def nested(values: Values, change: Callable[[Values, str], Values]) -> dict[str, Values]:
    """Changes each key inside of the rotary parameters, those of a kind of layer too."""
    cases = {}
    for outer in [key for key in NESTED if values.get(key)]:
        for key, value in values[outer].items():
            cases[f"{outer}.{key}"] = values | {outer: change(values[outer], key)}
            for inner in value if isinstance(value, dict) else ():
                part = values[outer] | {key: change(value, inner)}
                cases[f"{outer}.{key}.{inner}"] = values | {outer: part}
    return cases


def different_positions(family: ModelFamily, values: Values, at: str) -> str:
    """Says how we rotate otherwise than transformers' model does; "" where we do not."""
    found, refusal = ours(family, values)
    try:
        model = getattr(transformers, family.architecture)(settings_of(family, values))
    except REFUSALS as error:
        return "" if found is None else f"transformers refuses: {error!r}"
    if found is None:
        return "" if at.rpartition(".")[2] in refusal else f"refused: {refusal}"
    wrong = [
        f"layer {index}: {mine} against {theirs}"
        for index, layer in enumerate(layers_of(found.decoder.stack))
        for mine, theirs in [(our_positions(found, layer), their_positions(model, index))]
        if not np.allclose(mine, theirs, rtol=1e-5)
    ]
    return "; ".join([*wrong, difference(family, values, at.rpartition(".")[2])][:1])


def our_positions(config: Any, layer: Any) -> list[float]:
    """Returns the scale of the scores, the magnitude and all frequencies."""
    mixer = layer.attention
    if isinstance(mixer, LatentAttention.Config):
        head, rotated = mixer.plain_width + mixer.rotated_width, mixer.rotated_width
    else:
        assert isinstance(mixer, Attention.Config)
        head = rotated = mixer.head_width or config.width // mixer.num_heads
    positions: Any = mixer.positions
    width, scaling = int(rotated * positions.fraction), positions.scaling.build()
    frequencies = positions.base ** -(np.arange(0, width, 2) / width)
    scaled = scaling.scaled(frequencies, positions.base)
    return [mixer.scale or head**-0.5, scaling.magnitude, *scaled.tolist()]


def their_positions(model: Any, layer: int) -> list[float]:
    """Returns the same of transformers' model; Gemma 3 keeps them a kind of layer."""
    rotary, kinds = model.model.rotary_emb, getattr(model.config, "layer_types", None)
    kind = f"{kinds[layer]}_" if kinds and hasattr(rotary, f"{kinds[layer]}_inv_freq") else ""
    frequencies = getattr(rotary, f"{kind}inv_freq").tolist()
    magnitude = getattr(rotary, f"{kind}attention_scaling")
    return [model.model.layers[layer].self_attn.scaling, magnitude, *frequencies]
