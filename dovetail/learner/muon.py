"""Muon: matrices move along their orthogonalised momentum, everything else by another optimizer."""

from __future__ import annotations

import math

import jax
import optax

from dovetail.config import ConfigOf, Part
from dovetail.learner.optimizer import Optimizer, Specs, per_tensor
from dovetail.learner.optimizers import AdamW
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec


class Muon(Part):
    """Muon (kellerjordan.github.io/posts/muon) for the matrix of each layer, `others` for the rest.

    An orthogonal matrix has numbers of size 1 / sqrt(max(in, out)); multiplied by `update_rms`
    times that root they have the size of AdamW's updates (about 0.2, arXiv 2502.16982). So one
    learning rate serves both, and AdamW's rate and decay carry over.
    """

    class Config(Part.Config["Muon"]):
        """The momentum, the orthogonalisation, and what the rest is trained by."""

        momentum: float = 0.95
        nesterov: bool = True
        newton_schulz_steps: int = 5
        update_rms: float = 0.2
        mu_dtype: str | None = None
        # Matrices with one of these logical axes are left to `others`: an output layer's rows are
        # the words of a vocabulary, of which a batch holds few.
        excluded_axes: tuple[str, ...] = ("vocab",)
        others: ConfigOf[Optimizer] = AdamW.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config: Muon.Config = config
        self.others = config.others.build()

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the direction of both kinds."""
        matrices = {path: spec for path, spec in specs.items() if self._is_for_muon(spec)}
        rest = {path: spec for path, spec in specs.items() if path not in matrices}
        by_muon, by_others = per_tensor(matrices, self._muon), self.others.transformation(rest)

        def init(params: Arrays) -> dict[str, optax.OptState]:
            return {
                "muon": by_muon.init(_of(matrices, params)),
                "others": by_others.init(_of(rest, params)),
            }

        def update(
            updates: Arrays, state: dict[str, optax.OptState], params: Arrays | None = None
        ) -> tuple[Arrays, dict[str, optax.OptState]]:
            params = params or {}
            muon, muon_state = by_muon.update(
                _of(matrices, updates), state["muon"], _of(matrices, params)
            )
            others, others_state = by_others.update(
                _of(rest, updates), state["others"], _of(rest, params)
            )
            return {**muon, **others}, {"muon": muon_state, "others": others_state}

        return optax.GradientTransformation(init, update)

    def _is_for_muon(self, spec: ParameterSpec) -> bool:
        return spec.is_matrix and not set(self.config.excluded_axes) & set(spec.axes)

    def _muon(self, spec: ParameterSpec) -> optax.GradientTransformation:
        """Returns the transformation of one layer's array, whose fans say how it is a matrix."""
        sizes = [math.prod(spec.layer_shape[a] for a in fan) for fan in (spec.fan_in, spec.fan_out)]
        numbers = optax.contrib.MuonDimensionNumbers(spec.fan_in, spec.fan_out)
        orthogonal = optax.contrib.scale_by_muon(
            ns_steps=self.config.newton_schulz_steps,
            beta=self.config.momentum,
            nesterov=self.config.nesterov,
            mu_dtype=self.config.mu_dtype,
            weight_dimension_numbers=numbers,
        )
        return optax.chain(orthogonal, optax.scale(self.config.update_rms * math.sqrt(max(sizes))))


def _of(specs: Specs, arrays: Arrays) -> dict[str, jax.Array]:
    return {path: arrays[path] for path in specs}
