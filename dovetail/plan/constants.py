"""The constants of the time model that no data sheet gives: two fitted ones, and assumptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RooflineConstants:
    """The constants that are fitted to published steps, each a share of the peak rate.

    Attributes:
        kernels: the rate of Pallas kernels, by the FLOPs that they actually compute.
        trainium: the rate of Trainium, for which nothing can be compiled here.
    """

    kernels: float
    trainium: float


# `python benchmarks/published.py` fits them, and prints the error on held-out rows.
FITTED_CONSTANTS = RooflineConstants(kernels=0.34, trainium=0.285)

# The share of the peak rate that XLA's matmuls reach. It is libtpu's own estimate of the cycles of
# a plain matmul in a layer of Llama 2 7B on a v5p (1.287 ms for 5.5e11 FLOPs).
MATMUL = 0.93

# The relative error of predicted seconds, by their source: see docs/plan.md.
ERROR_BAND = {"compiled": 0.25, "analytic": 0.5}

# How often the analytic model moves matmul outputs through HBM. It was compared with compiled
# programs of dense models; mixtures of experts move more.
ACTIVATION_PASSES = 10.0
# HBM bytes per parameter of an update: gradient, parameter and two moments in float32, read and
# written, and the copies in the precision of matmuls.
UPDATE_BYTES = 36.0
# The share of the compute time of layers that can hide collectives. Programs that XLA compiles for
# TPUs by default wait for all-gathers of parameters.
OVERLAP = {"gpu": 0.8, "neuron": 0.8, "tpu": 0.0, "cpu": 0.0}
# Bytes/s between a chip and its host: half of 16 lanes of PCIe 4.
HOST_BANDWIDTH = 16e9
