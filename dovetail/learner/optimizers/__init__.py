"""Optimizers: from gradients to update directions, on top of Optax."""
