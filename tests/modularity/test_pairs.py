"""One experiment with one feature: each outcome, and that a wrong declaration is found."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from dovetail.features import Feature, features
from dovetail.modularity import pairs
from dovetail.modularity.pairs import build_pair, execute_pair, trace_pair


@pytest.mark.parametrize(
    ("experiment", "feature", "outcome"),
    [
        ("tiny-lm", "alibi", "works"),
        ("tiny-lm", "swiglu", "unchanged"),
        ("tiny-lm", "capacity", "not applicable"),
        ("mixtral-8x7b", "moe", "not applicable"),
        ("mixtral-8x7b", "moe-every", "not applicable"),
    ],
)
def test_outcomes(experiment: str, feature: str, outcome: str) -> None:
    found = build_pair(experiment, feature)
    assert (found.outcome, bool(found.detail)) == (outcome, outcome == "not applicable")


def test_parameters_that_come_and_go_are_counted() -> None:
    without = build_pair("gpt2", "no-positions")
    assert (without.added, without.differing) == (-1024 * 768, 1)
    assert build_pair("llama3-8b", "multi-query").differing == 2, "the maps of keys and values"
    assert build_pair("llama3-8b", "lora").added > 0


def planted(monkeypatch: pytest.MonkeyPatch, like: str, **changes: Any) -> None:
    """Puts a spoilt feature in the place of one."""
    spoilt: Feature = replace(features()[like], **changes)
    monkeypatch.setattr(pairs, "features", lambda: features() | {like: spoilt})


def test_a_refusal_of_what_could_be_built_is_distinguished() -> None:
    found = build_pair("llama2-7b-muon", "mup")
    assert (found.outcome, found.detail[:25]) == ("conflict", "learner.optimizer is Muon")


def test_a_refusal_does_not_hide_a_broken_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(config: Any) -> Any:
        return config["a config has fields, not items"]

    planted(monkeypatch, "capacity", unchecked=stumbles)
    found = build_pair("tiny-lm", "capacity")
    assert found.outcome == "fails"
    assert "TypeError" in found.detail


def test_a_declaration_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that there is nothing to change, and changes the experiment."""
    needs = {"dovetail.layers.moe:MixtureOfExperts": "there are no experts"}
    planted(monkeypatch, "alibi", needs=MappingProxyType(needs))
    found = build_pair("tiny-lm", "alibi")
    assert found.outcome == "fails"
    assert "declared not applicable" in found.detail


def broken(config: Any) -> Any:
    """Makes a model that cannot be built."""
    config = config.clone()
    config.model.decoder.stack.layer.attention.num_heads = 7
    return config


def test_what_cannot_be_built_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "alibi", apply=broken)
    for stage, reached in ((build_pair, "applied"), (trace_pair, "built")):
        found = stage("tiny-lm", "alibi")
        assert (found.outcome, found.stage) == ("fails", reached)
        assert "num_heads" in found.detail


def test_a_step_is_traced_and_run(recwarn: pytest.WarningsRecorder) -> None:
    assert trace_pair("tiny-hybrid", "qk-norm").detail == ""
    assert execute_pair("tiny-lm", "qk-norm").detail == ""
    warned = [str(warning.message) for warning in recwarn]
    assert not [text for text in warned if "Sharding info" in text]


def test_what_trains_to_no_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(config: Any) -> Any:
        config = config.clone()
        config.learner.schedule.peak = 1e30
        return config

    planted(monkeypatch, "alibi", apply=diverging)
    found = execute_pair("tiny-lm", "alibi")
    assert found.outcome == "fails"
    assert "NonFiniteError" in found.detail
