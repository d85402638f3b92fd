"""Features of blocks: each reaches every part of its kind, or says why it makes no sense."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from dovetail.config import ConfigError, apply_modifier, select
from dovetail.features import NotApplicable, features
from dovetail.layers import (
    BaseFeedForward,
    BaseNorm,
    BaseResidual,
    Decoder,
    FeedForward,
    PreNorm,
    RMSNorm,
    layers_of,
)
from dovetail.layers.feed_forward import PlainFeedForward, squared_relu
from dovetail.layers.moe import (
    Capacity,
    Dropless,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    RouterZLoss,
    TopKRouter,
)
from dovetail.layers.moe.capacity import ExpertChoice
from dovetail.layers.norms import DynamicTanh, LayerNorm, NoNorm
from dovetail.layers.residual import OutputNorm, PostNorm, SandwichNorm
from dovetail.layers.scaled_residual import ScaledResidual
from tests.features.representatives import REPRESENTATIVES, shapes, with_features

every_model = pytest.mark.parametrize("experiment", REPRESENTATIVES)
every_mixture = pytest.mark.parametrize("experiment", ["qwen3-30b-a3b", "deepseek-v3"])
FEED_FORWARDS = {
    "swiglu": (FeedForward, jax.nn.silu),
    "geglu": (FeedForward, jax.nn.gelu),
    "plain-feed-forward": (PlainFeedForward, jax.nn.gelu),
    "relu-squared": (PlainFeedForward, squared_relu),
}
NORMS = {
    "rms-norm": RMSNorm,
    "layer-norm": LayerNorm,
    "no-norm": NoNorm,
    "dynamic-tanh": DynamicTanh,
}
JOINTS = {
    "pre-norm": PreNorm,
    "post-norm": PostNorm,
    "sandwich-norm": SandwichNorm,
    "output-norm": OutputNorm,
}
OF_MIXTURES = {
    "expert-choice": "there are no experts",
    "shared-expert": "there are no routed experts",
    "capacity": "there are no experts with a capacity",
    "router-z-loss": "there is no router",
    "loss-free-balance": "there is no router to bias",
}


@pytest.mark.parametrize("name", FEED_FORWARDS)
@every_model
def test_every_feed_forward_is_of_the_kind_experts_too(experiment: str, name: str) -> None:
    config, (kind, activation) = with_features(experiment, name), FEED_FORWARDS[name]
    before = select(with_features(experiment), BaseFeedForward).found
    found = select(config, BaseFeedForward).found
    assert {path: part.hidden for path, part in found.items()} == {
        path: part.hidden for path, part in before.items()
    }
    for part in found.values():
        assert type(part) is kind.Config
        assert part.activation is activation
    assert any("feed_forward/gate" in path for path in shapes(config)) == (kind is FeedForward)


@pytest.mark.parametrize("experiment", ["tiny-lm", "gpt2"])
def test_experts_on_every_second_layer(experiment: str) -> None:
    config = with_features(experiment, "moe-every:every=2,num_experts=4,top_k=1")
    kinds = [type(layer.feed_forward) for layer in layers_of(config.model.decoder.stack)]
    dense = type(with_features(experiment).model.decoder.stack.layer.feed_forward)
    assert kinds == [dense, MixtureOfExperts.Config]
    (mixture,) = select(config, MixtureOfExperts)
    assert (mixture.num_experts, mixture.top_k) == (4, 1)
    assert shapes(config)


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_which_layers_get_experts(every: int) -> None:
    config = with_features("small-lm")
    config.model.decoder.stack.num_layers = 7
    found = layers_of(apply_modifier(config, f"moe-every:every={every}").model.decoder.stack)
    sparse = [i for i, layer in enumerate(found) if select(layer, MixtureOfExperts).found]
    assert sparse == list(range(every - 1, 7, every))


@every_mixture
def test_who_has_experts_gets_no_others(experiment: str) -> None:
    with pytest.raises(NotApplicable, match=r"is MixtureOfExperts already: set its num_experts"):
        with_features(experiment, "moe-every")


def test_a_layer_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"every: expected 1 to 2 .*, got 5"):
        with_features("tiny-lm", "moe-every:every=5")


@pytest.mark.parametrize("name", OF_MIXTURES)
@pytest.mark.parametrize("experiment", ["tiny-lm", "gpt2"])
def test_without_experts_they_make_no_sense(experiment: str, name: str) -> None:
    with pytest.raises(NotApplicable, match=OF_MIXTURES[name]):
        with_features(experiment, name)
    with pytest.raises(ConfigError):  # the need is one: without it, nothing can be done
        features()[name].unchecked(with_features(experiment))


@pytest.mark.parametrize("name", OF_MIXTURES)
def test_after_moe_they_do(name: str) -> None:
    assert shapes(with_features("tiny-lm", "moe:num_experts=4", name))


@every_mixture
def test_experts_choose(experiment: str) -> None:
    config = with_features(experiment, "router-z-loss", "expert-choice:factor=1.5")
    for mixture in select(config, MixtureOfExperts):
        assert mixture.dispatch == ExpertChoice.Config(factor=1.5)
        assert mixture.losses == {"z": RouterZLoss.Config()}
    assert not select(config, LossFreeBias).found
    assert shapes(config) == shapes(with_features(experiment))


@every_mixture
def test_a_shared_expert_stands_beside(experiment: str) -> None:
    before = with_features(experiment)
    config = with_features(experiment, "shared-expert")
    pairs = zip(select(before, MixtureOfExperts), select(config, MixtureOfExperts), strict=True)
    for old, new in pairs:
        assert new.shared == (old.expert if old.shared is None else old.shared)
    assert any("/shared/" in path for path in shapes(config))


@every_mixture
def test_capacity(experiment: str) -> None:
    config = with_features(experiment, "capacity:factor=2.0")
    assert not select(config, Dropless).found
    assert all(found.factor == 2.0 for found in select(config, Capacity))
    assert shapes(config) == shapes(with_features(experiment))


@every_mixture
def test_a_loss_of_routers_is_added_to_the_others(experiment: str) -> None:
    before = with_features(experiment)
    config = with_features(experiment, "router-z-loss:coefficient=0.1")
    pairs = zip(select(before, MixtureOfExperts), select(config, MixtureOfExperts), strict=True)
    for old, new in pairs:
        assert new.losses == {**old.losses, "z": RouterZLoss.Config(coefficient=0.1)}


@every_mixture
def test_a_bias_balances_instead_of_a_loss(experiment: str) -> None:
    config = with_features(experiment, "router-z-loss", "loss-free-balance:rate=0.01")
    assert not select(config, LoadBalanceLoss).found
    assert len(select(config, RouterZLoss)) == len(select(config, MixtureOfExperts))
    assert all(found.bias == LossFreeBias.Config(rate=0.01) for found in select(config, TopKRouter))


@pytest.mark.parametrize("name", NORMS)
@every_model
def test_every_norm_of_the_residual_stream_is_replaced(experiment: str, name: str) -> None:
    before, config = with_features(experiment), with_features(experiment, name)
    stream = {config.model.decoder.norm.tree_path()}
    for path, joint in select(config, BaseResidual).found.items():
        stream |= {f"{path}.{inner}" for inner in select(joint, BaseNorm).found}
    old, new = select(before, BaseNorm).found, select(config, BaseNorm).found
    assert set(old) == set(new)
    for path, norm in new.items():
        assert type(norm) is NORMS[name].Config if path in stream else norm == old[path]
    assert shapes(config)


@pytest.mark.parametrize("name", JOINTS)
@every_model
def test_every_residual_connection_is_replaced_with_its_norms(experiment: str, name: str) -> None:
    before, config = with_features(experiment), with_features(experiment, name)
    old, new = select(before, BaseResidual).found, select(config, BaseResidual).found
    assert set(old) == set(new)
    for path, joint in new.items():
        assert type(joint) is JOINTS[name].Config
        norms = list(select(joint, BaseNorm))
        assert len(norms) == (2 if name == "sandwich-norm" else 1)
        assert all(norm == old[path].norm for norm in norms)
    assert shapes(config)


@every_model
def test_residual_connections_are_scaled_by_their_number(experiment: str) -> None:
    config = with_features(experiment, "depth-scaled")
    layers = len(layers_of(config.model.decoder.stack))
    factors = [found.factor for found in select(config, ScaledResidual)]
    assert factors == [(2 * layers) ** -0.5] * len(select(config, BaseResidual))
    assert shapes(config) == shapes(with_features(experiment))
    with pytest.raises(NotApplicable, match=r"is ScaledResidual already: it applies only once"):
        apply_modifier(config, "depth-scaled")


@pytest.mark.parametrize("joint", JOINTS)
def test_scaled_residuals_and_norm_placement_combine_in_any_order(joint: str) -> None:
    one = with_features("gpt2", "depth-scaled", joint)
    assert one == with_features("gpt2", joint, "depth-scaled")
    assert len(select(one, ScaledResidual)) == len(select(one, BaseResidual))


@pytest.mark.parametrize("name", [*NORMS, *JOINTS, "depth-scaled"])
def test_without_residual_connections_they_are_refused(name: str) -> None:
    config: Any = RMSNorm.Config()
    with pytest.raises(NotApplicable, match="it has no BaseResidual"):
        features()[name].apply(config)
    assert not select(config, Decoder).found
