"""Features of attention: what they do to each kind of model, and where they say they cannot."""

from __future__ import annotations

import re

import pytest

from dovetail.config import select
from dovetail.experiments import experiments
from dovetail.features import NotApplicable, features
from dovetail.layers import Attention, BaseAttention, Scores
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.linear.adapters import LoRA
from dovetail.layers.linear.linear import NormedLinear
from tests.features.representatives import REPRESENTATIVES, ends, shapes, with_features

GROUPED = tuple(name for name in REPRESENTATIVES if name != "deepseek-v3")
every_representative = pytest.mark.parametrize("experiment", REPRESENTATIVES)
every_grouped = pytest.mark.parametrize("experiment", GROUPED)


def refused(experiment: str, *texts: str, because: str) -> None:
    with pytest.raises(NotApplicable, match=re.escape(because)):
        with_features(experiment, *texts)


@every_grouped
def test_multi_query(experiment: str) -> None:
    config = with_features(experiment, "multi-query")
    heads = {found.num_heads for found in select(config, Attention)}
    widths = {shape[-1] for shape in ends(shapes(config), "attention/query/weight")}
    keys = {shape[-1] for shape in ends(shapes(config), "attention/key/weight")}
    assert {width // count for width in widths for count in heads} == keys


@every_grouped
def test_grouped_query(experiment: str) -> None:
    told = with_features(experiment, "grouped-query:num_kv_heads=2")
    assert {found.num_kv_heads for found in select(told, Attention)} == {2}
    told.build()
    with_features(experiment, "grouped-query").build()


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [("gpt2", 3), ("gpt2-xl", 5), ("llama2-7b", 8), ("qwen3-30b-a3b", 4)],
)
def test_the_default_is_a_quarter_of_the_query_heads(experiment: str, expected: int) -> None:
    grouped = features()["grouped-query"].apply(experiments()[experiment].config())
    assert {found.num_kv_heads for found in select(grouped, Attention)} == {expected}


@pytest.mark.parametrize("name", ["multi-query", "grouped-query", "latent", "qk-norm"])
def test_latent_attention_has_no_keys_of_its_own(name: str) -> None:
    refused("deepseek-v3", name, because=f"--with {name} does not apply to this experiment: it ")
    refused("tiny-lm", "latent", name, because="it has no Attention: ")


@every_grouped
def test_latent(experiment: str) -> None:
    plain, config = with_features(experiment), with_features(experiment, "latent")
    before, after = shapes(plain), shapes(config)
    for ending in ("attention/query/weight", "attention/output/weight"):
        assert ends(before, ending) == ends(after, ending)
    for found in select(config, LatentAttention):
        head = found.plain_width + found.rotated_width
        assert (found.value_width, found.latent_width) == (head, 4 * head)
        assert found.rotated_width % 2 == 0
    for old, new in zip(select(plain, Attention), select(config, BaseAttention), strict=True):
        assert (old.mask, old.positions, old.scores) == (new.mask, new.positions, new.scores)


@pytest.mark.parametrize("experiment", ["qwen3-30b-a3b", "olmo2-7b"])
def test_latent_leaves_no_half_of_a_qk_norm(experiment: str) -> None:
    assert select(with_features(experiment), NormedLinear).found
    config = with_features(experiment, "latent")
    assert not select(config, NormedLinear).found
    config.build()


def test_latent_takes_over_the_maps_of_keys_and_values() -> None:
    """With adapters and biases: else adapters' training would freeze new maps at random values."""
    config = with_features("qwen3-30b-a3b", "lora:rank=2", "latent")
    for found in select(config, LatentAttention):
        assert all(isinstance(m, LoRA.Config) for m in (found.query, found.latent, found.expand))
    assert all(m.latent.bias for m in select(with_features("gpt2", "latent"), LatentAttention))
    config.build()


@pytest.mark.parametrize(("window", "expected"), [(1024, {128, 1024}), (64, {64})])
def test_a_window_is_never_widened(window: int, expected: set[int]) -> None:
    plain = experiments()["gpt-oss-20b"].config()
    config = features()["sliding-window"].apply(plain, window=window)
    assert {found.mask.window for found in select(config, BaseAttention)} == expected


@every_representative
def test_the_window_that_is_tried_hides_something(experiment: str) -> None:
    wanted = features()["sliding-window"]
    config = wanted.apply(with_features(experiment), **wanted.trial)
    reaches = {found.mask.window for found in select(config, BaseAttention)}
    assert max(reaches) < config.input.sequence_length


@every_representative
def test_sliding_window(experiment: str) -> None:
    config = with_features(experiment, "sliding-window:window=3")
    assert {found.mask.window for found in select(config, BaseAttention)} == {3}
    config.build()


@every_representative
@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("gated-output", "attention/mixing/gate/weight"),
        ("differential", "attention/mixing/exponents"),
        ("sinks", "attention/scores/sinks"),
    ],
)
def test_what_is_added_stands_beside_what_is_there(experiment: str, name: str, ending: str) -> None:
    before = shapes(with_features(experiment))
    after = shapes(with_features(experiment, name))
    assert before.items() <= after.items()
    assert len(ends(after, ending)) == len(ends(before, "attention/output/weight"))


@every_representative
@pytest.mark.parametrize(
    ("text", "part", "field", "value"),
    [
        ("soft-cap:cap=20", "SoftCappedScores", "cap", 20.0),
        ("sigmoid", "SigmoidAttention", "length", 32),
        ("sigmoid:length=99", "SigmoidAttention", "length", 99),
    ],
)
def test_scores(experiment: str, text: str, part: str, field: str, value: float) -> None:
    config = with_features(experiment, text)
    for found in select(config, BaseAttention):
        assert type(found.scores).builds().__name__ == part
        assert getattr(found.scores, field) == value
    assert shapes(config) == shapes(with_features(experiment))


@pytest.mark.parametrize("experiment", ["tiny-lm", "gpt2", "gpt-oss-20b"])
def test_qk_norm_normalises_each_head(experiment: str) -> None:
    config = with_features(experiment, "qk-norm")
    assert len(select(config, NormedLinear)) == 2 * len(select(config, Attention))
    for attention in select(config, Attention):
        assert attention.query.group == (
            attention.head_width or config.model.width // attention.num_heads
        )
    assert shapes(with_features(experiment)).items() <= shapes(config).items()


def test_what_is_there_is_not_added_again() -> None:
    refused("qwen3-30b-a3b", "qk-norm", because="is NormedLinear already: it applies only once")
    refused("gpt-oss-20b", "sinks", because="is LearnedSinks already: it applies only once")
    refused("gemma2-2b", "soft-cap", because="is SoftCappedScores already: set its cap")
    for name in ("differential", "gated-output"):
        refused("tiny-lm", name, name, because="it applies only once")


def test_sinks_and_sigmoids_exclude_each_other() -> None:
    refused("gpt-oss-20b", "sigmoid", because="is SoftmaxWrapper already: it needs the softmax")
    refused("tiny-lm", "sigmoid", "sinks", because="is SoftmaxFree already: sinks need a softmax")


def test_features_of_scores_add_up() -> None:
    config = with_features("tiny-lm", "soft-cap", "alibi", "sigmoid")
    found = select(config, Scores)
    names = [type(scores).builds().__name__ for scores in found]
    assert names == ["SigmoidAttention", "Alibi", "SoftCappedScores", "Scores"]
    config.build()
