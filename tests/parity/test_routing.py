"""Mixtures against those of transformers: the same router, experts and results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from dovetail.layers import FeedForward, Linear
from dovetail.layers.moe import (
    GroupLimitedSelection,
    LossFreeBias,
    MixtureOfExperts,
    NoSelectionBias,
    ScoreWeights,
    SigmoidScores,
    SoftmaxWeights,
    TopKRouter,
)
from dovetail.module import functional

BATCH, SEQUENCE, WIDTH, HIDDEN, EXPERTS, CHOICES = 2, 7, 16, 12, 8, 3
X = np.random.default_rng(5).normal(size=(BATCH, SEQUENCE, WIDTH)).astype(np.float32)


def randomized(block: Any) -> Any:
    """Fills every parameter and buffer with random numbers."""
    torch.manual_seed(0)
    with torch.no_grad():
        for value in [*block.parameters(), *block.buffers()]:
            value.normal_(0, 0.3)
    return block.eval()


def expert_params(experts: Any) -> dict[str, Any]:
    """Splits the fused matrices [X, 2F, E] of the experts."""
    gate, up = (
        experts.gate_up_proj.detach()
        .numpy()
        .transpose(0, 2, 1)
        .reshape(EXPERTS, WIDTH, 2, HIDDEN)
        .transpose(2, 0, 1, 3)
    )
    down = experts.down_proj.detach().numpy().transpose(0, 2, 1)
    return {"gate/weight": gate, "up/weight": up, "down/weight": down}


def run(config: MixtureOfExperts.Config, params: dict[str, Any], **options: Any) -> np.ndarray:
    given = {path: jnp.asarray(value) for path, value in params.items()}
    return np.asarray(functional(config.build(), given, jnp.asarray(X), **options)[0])


def mixture(**values: Any) -> MixtureOfExperts.Config:
    return MixtureOfExperts.Config(
        width=WIDTH,
        num_experts=EXPERTS,
        top_k=CHOICES,
        expert=FeedForward.Config(hidden=HIDDEN),
        **values,
    )


def test_mixtral() -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOICES,
    )
    block = randomized(MixtralSparseMoeBlock(config))
    params = expert_params(block.experts)
    params["router/projection/weight"] = block.gate.weight.detach().numpy().T
    expected = block(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(run(mixture(), params), expected, atol=1e-5)


@pytest.mark.parametrize("normalized", [True, False])
def test_qwen3_moe(normalized: bool) -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import (
        Qwen3MoeConfig,
        Qwen3MoeSparseMoeBlock,
    )

    config = Qwen3MoeConfig(
        hidden_size=WIDTH,
        moe_intermediate_size=HIDDEN,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOICES,
        norm_topk_prob=normalized,
    )
    block = randomized(Qwen3MoeSparseMoeBlock(config))
    params = expert_params(block.experts)
    params["router/projection/weight"] = block.gate.weight.detach().numpy().T
    expected = block(torch.tensor(X)).detach().numpy()
    router = TopKRouter.Config() if normalized else TopKRouter.Config(weights=ScoreWeights.Config())
    np.testing.assert_allclose(run(mixture(router=router), params), expected, atol=1e-5)


@pytest.mark.parametrize("normalized", [True, False])
def test_deepseek_v3(normalized: bool) -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=WIDTH,
        moe_intermediate_size=HIDDEN,
        n_routed_experts=EXPERTS,
        n_shared_experts=2,
        num_experts_per_tok=CHOICES,
        n_group=4,
        topk_group=2,
        norm_topk_prob=normalized,
        routed_scaling_factor=2.5,
    )
    block = randomized(DeepseekV3MoE(config))
    params = expert_params(block.experts)
    params["router/projection/weight"] = block.gate.weight.detach().numpy().T
    for name in ("gate", "up", "down"):
        weight = getattr(block.shared_experts, f"{name}_proj").weight
        params[f"shared/{name}/weight"] = weight.detach().numpy().T
    router = TopKRouter.Config(
        scores=SigmoidScores.Config(),
        selection=GroupLimitedSelection.Config(num_groups=4, top_groups=2),
        bias=LossFreeBias.Config(),
        scaling=2.5,
    )
    if not normalized:
        router.weights = ScoreWeights.Config()
    variables = {"router/bias/bias": jnp.asarray(block.gate.e_score_correction_bias.numpy())}
    model = mixture(router=router, shared=FeedForward.Config(hidden=2 * HIDDEN))
    expected = block(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(run(model, params, variables=variables), expected, atol=1e-5)
    # The bias does decide here: without it, other experts are chosen.
    unbiased = model.clone()
    unbiased.router.bias = NoSelectionBias.Config()
    assert not np.allclose(run(unbiased, params), expected, atol=1e-3)


def test_the_router_of_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssTopKRouter

    config = GptOssConfig(hidden_size=WIDTH, num_local_experts=EXPERTS, num_experts_per_tok=CHOICES)
    theirs = randomized(GptOssTopKRouter(config))
    router = TopKRouter.Config(
        width=WIDTH,
        num_experts=EXPERTS,
        top_k=CHOICES,
        projection=Linear.Config(dtype="float32", bias=True),
        weights=SoftmaxWeights.Config(),
    )
    params = {
        "projection/weight": jnp.asarray(theirs.weight.detach().numpy().T),
        "projection/bias": jnp.asarray(theirs.bias.detach().numpy()),
    }
    routing, _ = functional(router.build(), params, jnp.asarray(X))
    logits, weights, experts = theirs(torch.tensor(X.reshape(-1, WIDTH)))
    np.testing.assert_array_equal(routing.experts_BSK.reshape(-1, CHOICES), experts.numpy())
    for ours, other in ((routing.weights_BSK, weights), (routing.logits_BSX, logits)):
        np.testing.assert_allclose(ours.reshape(other.shape), other.detach().numpy(), atol=1e-5)


def test_the_load_balance_loss() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    model = mixture().build()
    key = jax.random.key(0)
    from dovetail.module import initialize

    params = initialize(model, key)
    _, outputs = functional(model, params, jnp.asarray(X), training=True, losses="return")
    logits = X.reshape(-1, WIDTH) @ np.asarray(params["router/projection/weight"])
    theirs = load_balancing_loss_func((torch.tensor(logits),), EXPERTS, CHOICES)
    ours = outputs.losses["losses/balance/load_balance"].value()
    np.testing.assert_allclose(ours * CHOICES, 0.01 * float(theirs), rtol=1e-5)
