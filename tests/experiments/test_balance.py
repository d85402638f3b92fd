"""In every experiment with experts, the balance loss is asked for and reaches the training loss."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import select
from dovetail.experiments import experiments
from dovetail.layers.moe import LoadBalanceLoss, MixtureOfExperts
from dovetail.module import TokenBatch, initialize, initialize_variables
from tests.experiments.tiny_models import TINY_MODELS, every_tiny_model


def has_experts(config):
    return len(select(config, MixtureOfExperts)) > 0


SPARSE = [name for name in TINY_MODELS if has_experts(experiments()[name].tiny())]


def test_there_are_experiments_with_experts():
    assert {"mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"} <= set(SPARSE)


def test_every_mixture_of_every_experiment_asks_for_balance():
    for name, found in experiments().items():
        config = found.config()
        for mixture in select(config, MixtureOfExperts).found.values():
            weights = [loss.coefficient for loss in mixture.losses.values()]
            assert weights, name
            assert min(weights) > 0, name


@every_tiny_model("mixtral-8x7b", among=SPARSE)
def test_the_training_loss_moves_with_the_coefficient(name):
    base = experiments()[name].tiny()
    losses = {}
    for coefficient in (0.0, 0.5):
        config = select(base, LoadBalanceLoss).set(coefficient=coefficient)
        losses[coefficient], balance = first_loss(config)
    assert balance > 0.5  # a perfect balance gives the coefficient itself
    np.testing.assert_allclose(losses[0.5] - losses[0.0], balance, rtol=1e-4)


def first_loss(config):
    """Returns the loss of the first step, and the part of it that is for balance."""
    trainer = config.build()
    model, key = trainer.model, jax.random.key(0)
    tokens = jax.random.randint(key, (4, 17), 0, model.vocab_size)
    positions = jnp.tile(jnp.arange(16), (4, 1))
    batch = TokenBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=positions,
        segment_ids=jnp.ones_like(positions),
        loss_weights=jnp.ones((4, 16)),
    )

    @jax.jit
    def step(batch):
        params, variables = initialize(model, key), initialize_variables(model, key)
        state = trainer.learner.init(model, params, variables)
        return trainer.learner.step(model, state, batch, key)[1]

    report = step(batch)
    return report.loss, sum(v for path, v in report.losses.items() if "load_balance" in path)
