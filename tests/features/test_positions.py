"""Features of positions: each leaves its own encoding, and no other."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from dovetail.config import select
from dovetail.features import NotApplicable
from dovetail.layers import BaseInputPositions, BasePositions
from dovetail.layers.attention.scores import PositionalScores
from dovetail.layers.positions.rotary import FrequencyScaling, InterleavedRotaryEmbedding
from tests.features.representatives import REPRESENTATIVES, ends, shapes, with_features

NONE = {"NoPositions", "NoInputPositions"}
ENCODINGS = {
    "rope": {"RotaryEmbedding", "NoInputPositions"},
    "partial-rope": {"RotaryEmbedding", "NoInputPositions"},
    "learned-positions": {"NoPositions", "LearnedPositions"},
    "no-positions": NONE,
    "alibi": NONE | {"Alibi"},
}
SCALINGS = {
    "rope-linear": "LinearScaling",
    "rope-ntk": "NtkScaling",
    "rope-yarn": "YarnScaling",
    "rope-llama3": "Llama3Scaling",
}


def built(config: Any, *kinds: Any) -> set[str]:
    return {type(found).builds().__name__ for kind in kinds for found in select(config, kind)}


def encodings(config: Any) -> set[str]:
    return built(config, BasePositions, BaseInputPositions, PositionalScores)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("experiment", REPRESENTATIVES)
def test_it_leaves_its_own_encoding_and_no_other(experiment: str, name: str) -> None:
    if (experiment, name) == ("gpt2", "learned-positions"):
        with pytest.raises(NotApplicable, match=r"is LearnedPositions already: set its length"):
            with_features(experiment, name)
        return
    config = with_features(experiment, name)
    paired = {"InterleavedRotaryEmbedding": "RotaryEmbedding"}  # which features are wherever
    assert {paired.get(found, found) for found in encodings(config)} == ENCODINGS[name]
    tables = ends(shapes(config), "decoder/positions/weight")
    assert tables == ([(32, 32)] if name == "learned-positions" else [])


@pytest.mark.parametrize(("first", "last"), [*itertools.permutations(ENCODINGS, 2)])
def test_the_last_one_counts(first: str, last: str) -> None:
    assert encodings(with_features("tiny-lm", first, last)) == ENCODINGS[last]


def test_a_bias_goes_and_other_changes_of_scores_stay() -> None:
    config = with_features("tiny-lm", "soft-cap", "alibi", "sinks", "rope")
    (attention,) = select(config, BasePositions).found
    scores = config.model.decoder.stack.layer.attention.scores
    assert type(scores).builds().__name__ == "LearnedSinks"
    assert type(scores.base).builds().__name__ == "SoftCappedScores"
    assert attention.endswith("attention.positions")


@pytest.mark.parametrize(
    ("name", "values"), [("rope", (10_000.0, 1.0)), ("partial-rope", (10_000.0, 0.5))]
)
def test_what_is_rotary_keeps_its_pairs(name: str, values: tuple[float, float]) -> None:
    config = with_features("deepseek-v3", name)
    for positions in select(config, BasePositions):
        assert isinstance(positions, InterleavedRotaryEmbedding.Config)
        assert (positions.base, positions.fraction) == values
    config.build()


def test_partial_rope_keeps_the_scaling() -> None:
    before = with_features("deepseek-v3", "rope-yarn:factor=3")
    config = with_features("deepseek-v3", "rope-yarn:factor=3", "partial-rope")
    assert [*select(config, FrequencyScaling)] == [*select(before, FrequencyScaling)]


def test_plain_rope_is_unscaled_and_rotates_all_features() -> None:
    config = with_features("deepseek-v3", "partial-rope", "rope:base=500")
    (positions, *_) = select(config, BasePositions)
    assert (positions.base, positions.fraction) == (500.0, 1.0)
    assert built(config, FrequencyScaling) == {"NoScaling"}


def test_partial_rope_keeps_the_base_that_was_set() -> None:
    config = with_features("tiny-lm", "rope:base=500", "partial-rope:fraction=0.25")
    (positions,) = select(config, BasePositions)
    assert (positions.base, positions.fraction) == (500.0, 0.25)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("experiment", REPRESENTATIVES)
def test_scalings_stretch_what_is_rotated(experiment: str, name: str) -> None:
    if experiment == "gpt2":
        refusal = "it has no FrequencyScaling: there are no RoPE frequencies to scale"
        with pytest.raises(NotApplicable, match=re.escape(refusal)):
            with_features(experiment, name)
        experiment, texts = "gpt2", ("rope", f"{name}:factor=3")
    else:
        texts = (f"{name}:factor=3",)
    config = with_features(experiment, *texts)
    config.build()
    assert built(config, FrequencyScaling) == {SCALINGS[name]}
    for scaling in select(config, FrequencyScaling):
        assert scaling.factor == 3.0
        assert getattr(scaling, "original_length", 32) == 32  # a training sequence


def test_lengths_can_be_set() -> None:
    yarn = with_features("tiny-lm", "rope-yarn:original_length=99")
    assert [found.original_length for found in select(yarn, FrequencyScaling)] == [99]
    learned = with_features("tiny-lm", "learned-positions:length=99")
    assert shapes(learned)["decoder/positions/weight"] == (99, 32)
