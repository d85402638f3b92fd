"""Optimizer state in host memory: its memory kind, and equal updates."""

from __future__ import annotations

import jax
import numpy as np

from dovetail.learner import Adafactor, AdamW
from dovetail.parallel import HostMemory
from tests.learner.tiny import Net, make_batch, make_learner, take_steps

HOST = HostMemory.Config()


def test_arrays_are_offloaded_and_scalars_are_not() -> None:
    model = Net.Config().build()
    axes = make_learner(optimizer=AdamW.Config(), optimizer_memory=HOST).state_axes(model)
    plain = make_learner(optimizer=AdamW.Config()).state_axes(model)
    assert axes == plain, "the axes are the same"
    assert {leaf.memory_kind for leaf in jax.tree.leaves(axes.optimizer) if leaf} == {"pinned_host"}
    assert {leaf.memory_kind for leaf in jax.tree.leaves(axes.optimizer) if not leaf} == {None}
    assert {leaf.memory_kind for leaf in jax.tree.leaves(axes.params)} == {None}
    assert {leaf.memory_kind for leaf in jax.tree.leaves(plain)} == {None}


def test_the_step_is_the_same() -> None:
    model, batches = Net.Config().build(), [make_batch(seed=seed) for seed in range(3)]
    for optimizer in (AdamW.Config(), Adafactor.Config(min_dim_size_to_factor=4)):
        plain, _ = take_steps(make_learner(optimizer=optimizer), model, batches)
        learner = make_learner(optimizer=optimizer, optimizer_memory=HOST)
        offloaded, _ = take_steps(learner, model, batches)
        jax.tree.map(np.testing.assert_array_equal, plain, offloaded)
