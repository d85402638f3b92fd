"""Mixture of experts: what reaches a token, written out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, apply_modifier, replace, select
from dovetail.layers import FeedForward
from dovetail.layers.moe import (
    Capacity,
    Dropless,
    GroupLimitedSelection,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    RouterZLoss,
    ScoreWeights,
    SigmoidScores,
    SoftmaxWeights,
    TopKRouter,
)
from dovetail.models.llama import llama
from dovetail.module import functional, parameter_specs
from tests.layers.cases import mixture, random_params, vectors

X = np.asarray(vectors())
EXPERTS, CHOICES = 4, 2


def feed_forward(params: Any, expert: int, x: np.ndarray) -> np.ndarray:
    gate, up, down = (
        np.asarray(params[f"{name}/weight"][expert]) for name in ("gate", "up", "down")
    )
    hidden = x @ gate
    return (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down


def by_hand(params: Any, kept: Any = lambda row, token, choice: True) -> np.ndarray:
    """Softmax over all, the best two, normalized; token by token."""
    result = np.zeros_like(X)
    logits = X @ np.asarray(params["router/projection/weight"])
    for row, token in np.ndindex(X.shape[:2]):
        scores = np.exp(logits[row, token]) / np.exp(logits[row, token]).sum()
        best = np.argsort(-scores)[:CHOICES]
        for choice, expert in enumerate(best):
            if kept(row, token, choice):
                weight = scores[expert] / scores[best].sum()
                result[row, token] += weight * feed_forward(params, expert, X[row, token])
    return result


def choices(params: Any) -> np.ndarray:
    return np.argsort(-(X @ np.asarray(params["router/projection/weight"])), axis=-1)[..., :CHOICES]


def test_dropless_is_the_weighed_sum_of_the_chosen() -> None:
    model = mixture().build()
    params = random_params(model)
    result, outputs = functional(model, params, jnp.asarray(X))
    np.testing.assert_allclose(result, by_hand(params), atol=1e-5)
    counts = np.bincount(choices(params).reshape(-1), minlength=EXPERTS)
    busiest = outputs.summaries["busiest_expert"].value()
    np.testing.assert_allclose(busiest, counts.max() / counts.mean(), rtol=1e-6)
    assert "dropped" not in outputs.summaries


def test_a_capacity_drops_later_tokens_and_later_choices() -> None:
    factor = 0.67  # of 3 slots that an even load would need: 2.01, so 3
    model = mixture().set(dispatch=Capacity.Config(factor=factor)).build()
    params = random_params(model)
    chosen = choices(params)
    kept = np.zeros(chosen.shape, bool)
    for row in range(X.shape[0]):
        capacity = dict.fromkeys(range(EXPERTS), 3)
        for choice in range(CHOICES):
            for token in range(X.shape[1]):
                kept[row, token, choice] = capacity[chosen[row, token, choice]] > 0
                capacity[chosen[row, token, choice]] -= 1
    assert 0 < (~kept).sum() < kept.size / 2
    result, outputs = functional(model, params, jnp.asarray(X))
    expected = by_hand(params, lambda *where: kept[where])
    np.testing.assert_allclose(result, expected, atol=1e-5)
    np.testing.assert_allclose(outputs.summaries["dropped"].value(), (~kept).mean(), rtol=1e-6)


def test_a_capacityy_capacity_is_dropless() -> None:
    params = random_params(mixture().build())
    capacityy = mixture().set(dispatch=Capacity.Config(factor=float(EXPERTS)))
    one, _ = functional(capacityy.build(), params, jnp.asarray(X))
    other, _ = functional(mixture().build(), params, jnp.asarray(X))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_shared_expert_is_added() -> None:
    config = mixture().set(shared=FeedForward.Config(hidden=8))
    params = random_params(config.build())
    result, _ = functional(config.build(), params, jnp.asarray(X))
    alone = {path.removeprefix("shared/"): v for path, v in params.items() if "shared" in path}
    plain = FeedForward.Config(width=16, hidden=8).build()
    shared, _ = functional(plain, alone, jnp.asarray(X))
    np.testing.assert_allclose(result, by_hand(params) + shared, atol=1e-5)


def test_softmax_of_the_chosen_is_the_normalized_softmax_of_all() -> None:
    other = mixture().set(router=TopKRouter.Config(weights=SoftmaxWeights.Config()))
    params = random_params(other.build())
    result, _ = functional(other.build(), params, jnp.asarray(X))
    np.testing.assert_allclose(result, by_hand(params), atol=1e-5)


def test_scaling_and_scores_as_weights() -> None:
    router = TopKRouter.Config(
        width=16,
        num_experts=EXPERTS,
        top_k=CHOICES,
        scores=SigmoidScores.Config(),
        weights=ScoreWeights.Config(),
        scaling=2.5,
    ).build()
    params = random_params(router)
    routing, _ = functional(router, params, jnp.asarray(X))
    scores = 1 / (1 + np.exp(-(X @ np.asarray(params["projection/weight"]))))
    np.testing.assert_allclose(routing.weights_BSK, 2.5 * -np.sort(-scores)[..., :2], rtol=1e-5)


def test_groups_limit_the_choice() -> None:
    selection = GroupLimitedSelection.Config(
        num_experts=6, top_k=2, num_groups=3, top_groups=1
    ).build()
    # The best single expert is in the second group; the best pair is the third.
    scores = jnp.asarray([[[0.1, 0.2, 0.9, 0.0, 0.5, 0.6]]])
    np.testing.assert_array_equal(selection(scores), [[[5, 4]]])
    two = GroupLimitedSelection.Config(num_experts=6, top_k=2, num_groups=3, top_groups=2).build()
    np.testing.assert_array_equal(two(scores), [[[2, 5]]])


def biased(rate: float = 0.1) -> TopKRouter.Config:
    return TopKRouter.Config(
        width=16,
        num_experts=EXPERTS,
        top_k=CHOICES,
        bias=LossFreeBias.Config(rate=rate),
    )


def test_the_bias_chooses_but_does_not_weigh_and_moves_against_the_load() -> None:
    router = biased().build()
    params = random_params(router)
    zero = {"bias/bias": jnp.zeros(EXPERTS)}
    plain, outputs = functional(router, params, jnp.asarray(X), variables=zero)
    np.testing.assert_array_equal((outputs.variables or {})["bias/bias"], 0)  # not in training
    _, outputs = functional(router, params, jnp.asarray(X), variables=zero, training=True)
    counts = np.asarray(plain.counts_X)
    expected = 0.1 * np.sign(counts.mean() - counts)
    np.testing.assert_allclose((outputs.variables or {})["bias/bias"], expected, rtol=1e-6)
    pushed = {"bias/bias": jnp.asarray([0.0, 0.0, 0.0, 5.0])}
    routing, _ = functional(router, params, jnp.asarray(X), variables=pushed)
    assert (routing.experts_BSK[..., 0] == 3).all()
    scores = np.take_along_axis(np.asarray(plain.scores_BSX), np.asarray(routing.experts_BSK), -1)
    np.testing.assert_allclose(routing.weights_BSK, scores / scores.sum(-1, keepdims=True), 1e-5)


def test_the_bias_evens_the_load_out() -> None:
    router = biased(rate=0.02).build()
    params = random_params(router)
    x = np.abs(np.asarray(vectors(1, 8, 32, 16)))  # of one sign, so that one expert is liked best
    variables = {"bias/bias": jnp.zeros(EXPERTS)}
    step = jax.jit(lambda v: functional(router, params, jnp.asarray(x), variables=v, training=True))
    spread = []
    for _ in range(60):
        routing, outputs = step(variables)
        variables = outputs.variables
        spread.append(routing.counts_X.max() / routing.counts_X.mean())
    assert spread[0] > 1.3
    assert spread[-1] < 1.1


def test_losses_are_added_in_training_only_and_are_those_of_the_papers() -> None:
    losses = {"b": LoadBalanceLoss.Config(coefficient=0.5), "z": RouterZLoss.Config(coefficient=2)}
    model = mixture().set(losses=losses).build()
    params = random_params(model)
    functional(model, params, jnp.asarray(X))  # would raise if a loss were left
    _, outputs = functional(model, params, jnp.asarray(X), training=True, losses="return")
    logits = X.reshape(-1, 16) @ np.asarray(params["router/projection/weight"])
    exponents = np.exp(logits)
    mean = (exponents / exponents.sum(-1, keepdims=True)).mean(0)
    share = np.bincount(choices(params).reshape(-1), minlength=EXPERTS) / (len(logits) * CHOICES)
    balance = outputs.losses["losses/b/load_balance"]
    np.testing.assert_allclose(balance.value(), 0.5 * EXPERTS * (share @ mean), rtol=1e-5)
    assert balance.weight == len(logits)
    z = outputs.losses["losses/z/router_z"].value()
    np.testing.assert_allclose(z, 2 * np.mean(np.log(exponents.sum(-1)) ** 2), rtol=1e-5)


def sizes(**values: Any) -> Any:
    return llama(vocab_size=32, width=16, num_layers=2, num_heads=2, hidden=24, **values)


def test_one_line_gives_every_model_experts_and_paths_stay() -> None:
    config = sizes()
    mixed = replace(config, FeedForward, MixtureOfExperts.Config(num_experts=8, top_k=2))
    (found,) = select(mixed, MixtureOfExperts)
    assert found.expert == FeedForward.Config(hidden=24)
    before, after = parameter_specs(config.build()), parameter_specs(mixed.build())
    assert set(after) - set(before) == {"decoder/stack/layer/feed_forward/router/projection/weight"}
    path = "decoder/stack/layer/feed_forward/gate/weight"
    assert (after[path].shape, after[path].axes) == (
        (2, 8, 16, 24),
        ("stage", "expert", "embed", "mlp"),
    )
    paths = after[path].layer_paths(path)
    assert len(paths) == len(set(paths)) == 16
    assert paths[9] == "decoder/stack/layer/1/feed_forward/1/gate/weight"
    assert after[path].active_size == before[path].size * 2


def test_the_modifier() -> None:
    from dovetail.experiments import experiments

    config = experiments()["tiny-lm"].config()
    mixed = apply_modifier(config, "moe:num_experts=4,top_k=1")
    (found,) = select(mixed, MixtureOfExperts)
    assert (found.num_experts, found.top_k, found.expert.hidden) == (4, 1, 352)
    assert isinstance(found.dispatch, Dropless.Config)
    with pytest.raises(
        ConfigError, match="feed_forward is MixtureOfExperts already: set its num_experts"
    ):
        apply_modifier(mixed, "moe")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (mixture().set(top_k=5), r"^top_k: a token cannot go to 5 of 4 experts"),
        (mixture().set(num_experts=0), "num_experts: expected 1 or more, got 0"),
        (mixture().set(dispatch=Capacity.Config(factor=0.0)), "factor: expected above 0"),
        (
            mixture().set(losses={"z": RouterZLoss.Config(coefficient=-1.0)}),
            r"losses\.z\.coefficient: expected 0 or more",
        ),
        (biased(rate=-1.0), "bias.rate: expected 0 or more"),
        (
            GroupLimitedSelection.Config(num_experts=6, top_k=2, num_groups=4, top_groups=1),
            "num_groups: 6 experts do not divide into 4 groups",
        ),
        (
            GroupLimitedSelection.Config(num_experts=6, top_k=3, num_groups=3, top_groups=1),
            "top_groups: 1 of 3 groups, with 2 experts each, are fewer than 3",
        ),
    ],
)
def test_mistakes_are_named(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build()
