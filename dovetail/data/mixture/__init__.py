"""Mixtures: batches with rows from several sources, in exact shares."""

from dovetail.data.mixture.input import MixtureInput, MixtureSource, MixtureStage
from dovetail.data.mixture.order import MixtureOrder

__all__ = ["MixtureInput", "MixtureOrder", "MixtureSource", "MixtureStage"]
