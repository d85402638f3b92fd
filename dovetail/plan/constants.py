"""What is fitted, and what is assumed: every number of the time model that no data sheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """The two numbers that published steps were used to fit, each a share of the peak rate.

    Attributes:
        kernels: what hand-written kernels reach, by the operations that they really do.
        trainium: what Trainium reaches, for which nothing can be compiled here.
    """

    kernels: float
    trainium: float


# `python benchmarks/published.py` fits them, and prints the error on rows that were left out.
FITTED = Constants(kernels=0.34, trainium=0.285)

# The share of the peak rate that XLA's products reach. It is libtpu's own estimate of the cycles of
# a plain product in a layer of Llama 2 7B on a v5p (1.287 ms for 5.5e11 operations).
MATMUL = 0.93

# How far seconds may be off, as a share, by where they come from: see docs/plan.md.
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
