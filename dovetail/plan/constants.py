"""What is fitted, and what is assumed: every number of the time model that no data sheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """The two numbers that published steps were used to fit.

    Attributes:
        matmul: the share of the peak rate that XLA's products reach.
        kernels: the share that hand-written kernels reach, by the operations that they really do.
    """

    matmul: float
    kernels: float


# `python benchmarks/published.py --fit` prints them, with the error on rows that were left out.
FITTED = Constants(matmul=0.85, kernels=0.45)

# How far a prediction may be off, as a share, by where it comes from: see docs/plan.md.
ERROR_BAND = {"compiled": 0.25, "analytic": 0.5}

# For the analytic model, how often what the products give goes through memory. Compared with
# compiled programs of dense models; mixtures of experts move more.
ACTIVATION_PASSES = 10.0
# Bytes to and from memory for each parameter in an update: gradient, parameter and two moments in
# float32, read and written, and the copies in the precision of products.
UPDATE_BYTES = 36.0
# The share of the time in which layers compute that can hide what is told meanwhile. Programs that
# XLA compiles for TPUs by default wait for what layers are gathered from.
OVERLAP = {"gpu": 0.8, "neuron": 0.8, "tpu": 0.0, "cpu": 0.0}
# Bytes a second between a chip and its host: half of what 16 lanes of fourth-generation PCIe have.
HOST_BANDWIDTH = 16e9
