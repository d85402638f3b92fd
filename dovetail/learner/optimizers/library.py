"""The optimizers that have a name: components over Optax transformations.

Any other Optax transformation becomes an optimizer through `Elementwise` or `PerTensor`. The names
in `OPTIMIZERS` are those of the feature `optimizer:name=...`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import optax
import optax.contrib

from dovetail.config import Component, ConfigError, ConfigOf, config_for, did_you_mean
from dovetail.learner.optimizers.base import (
    Elementwise,
    Optimizer,
    OptimizerConfig,
    PerTensor,
    Specs,
    build_optimizer,
    chain,
    partitioned,
    per_tensor,
    required_extras,
)
from dovetail.module import ParameterSpec


class AdamW(Component):
    """Adam (arXiv 1412.6980); AdamW (arXiv 1711.05101) with the learner's decoupled decay."""

    class Config(Component.Config["AdamW"]):
        """The decays of the moments; b2=0.95 is common for language models."""

        b1: float = 0.9
        b2: float = 0.95
        eps: float = 1e-8
        mu_dtype: str | None = None  # dtype of the first moment; None: the parameter's

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.transform = optax.scale_by_adam(
            config.b1, config.b2, config.eps, mu_dtype=config.mu_dtype
        )

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns Adam's direction."""
        return self.transform


class Lion(Component):
    """The sign of an interpolated momentum (arXiv 2302.06675).

    Use a learning rate three to ten times smaller than AdamW's, and a decay as much larger.
    """

    class Config(Component.Config["Lion"]):
        b1: float = 0.9
        b2: float = 0.99
        mu_dtype: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.transform = optax.scale_by_lion(config.b1, config.b2, mu_dtype=config.mu_dtype)

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns Lion's direction: every element is -1, 0 or 1."""
        return self.transform


class Sgd(Component):
    """SGD with momentum."""

    class Config(Component.Config["Sgd"]):
        """The momentum; 0 needs no state."""

        momentum: float = 0.9
        nesterov: bool = False
        mu_dtype: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        trace = optax.trace(config.momentum, config.nesterov, config.mu_dtype)
        self.transform = trace if config.momentum else optax.identity()

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the momentum."""
        return self.transform


class Adafactor(Component):
    """Adam with a factored second moment (arXiv 1804.04235).

    Updates are relative to each tensor's RMS, so learning rates are larger than AdamW's: 1e-2 is
    usual.
    """

    class Config(Component.Config["Adafactor"]):
        """As published; `momentum` costs the memory that factoring saves."""

        decay_rate: float = 0.8
        min_dim_size_to_factor: int = 128
        clipping_threshold: float | None = 1.0
        multiply_by_parameter_scale: bool = True
        momentum: float | None = None
        mu_dtype: str | None = None
        eps: float = 1e-30

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        steps = [
            optax.scale_by_factored_rms(
                decay_rate=config.decay_rate,
                min_dim_size_to_factor=config.min_dim_size_to_factor,
                epsilon=config.eps,
            )
        ]
        if config.clipping_threshold is not None:
            steps.append(optax.clip_by_block_rms(config.clipping_threshold))
        if config.multiply_by_parameter_scale:
            steps.append(optax.scale_by_param_block_rms())
        if config.momentum is not None:
            steps.append(
                optax.ema(config.momentum, debias=False, accumulator_dtype=config.mu_dtype)
            )
        self.transform = optax.chain(*steps)

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns Adafactor's direction, tensor by tensor."""
        return per_tensor(specs, lambda spec: self.transform)


class Muon(Component):
    """Orthogonalized momentum for matrices (kellerjordan.github.io/posts/muon), else `others`.

    The elements of an orthogonal matrix have RMS 1 / sqrt(max(in, out)). Scaled by `update_rms`
    times that root, updates have the RMS of AdamW's (about 0.2, arXiv 2502.16982). So one learning
    rate serves both, and AdamW's learning rate and decay carry over.
    """

    class Config(Component.Config["Muon"]):
        momentum: float = 0.95
        nesterov: bool = True
        newton_schulz_steps: int = 5
        update_rms: float = 0.2
        mu_dtype: str | None = None
        # Matrices with one of these logical axes use `others`: an embedding has a row per token of
        # the vocabulary, and a batch contains few of them.
        excluded_axes: tuple[str, ...] = ("vocab",)
        others: OptimizerConfig = AdamW.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config: Muon.Config = config
        self.others = build_optimizer(config.others)

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the directions of both optimizers."""
        matrices = {path: spec for path, spec in specs.items() if self._is_for_muon(spec)}
        rest = {path: spec for path, spec in specs.items() if path not in matrices}
        return partitioned(
            {
                "muon": (tuple(matrices), per_tensor(matrices, self._muon)),
                "others": (tuple(rest), self.others.transformation(rest)),
            }
        )

    def required_extras(self) -> tuple[str, ...]:
        """Returns the extras that `others` needs."""
        return required_extras(self.others)

    def _is_for_muon(self, spec: ParameterSpec) -> bool:
        return spec.is_matrix and not set(self.config.excluded_axes) & set(spec.axes)

    def _muon(self, spec: ParameterSpec) -> optax.GradientTransformation:
        """Returns the transformation of one layer's array; its fans define the matrix axes."""
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


def named_optimizer(name: str) -> ConfigOf[Optimizer]:
    """Returns the config of an optimizer, with its authors' defaults."""
    if name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        advice = did_you_mean(name, OPTIMIZERS)
        raise ConfigError(f"There is no optimizer {name!r}. {advice} Known: {known}.")
    return OPTIMIZERS[name]()


def _elementwise(transform: Any, **values: Any) -> Callable[[], Any]:
    return lambda: Elementwise.Config(transform=config_for(transform, **values))


def _per_tensor(*transforms: Any) -> Callable[[], Any]:
    def make() -> Any:
        configs = [config_for(transform) for transform in transforms]
        transform = config_for(chain, transforms=configs) if len(configs) > 1 else configs[0]
        return PerTensor.Config(transform=transform)

    return make


OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "adabelief": _elementwise(optax.scale_by_belief),
    "adadelta": _elementwise(optax.scale_by_adadelta),
    "adafactor": Adafactor.Config,
    "adagrad": _elementwise(optax.scale_by_rss),
    "adamax": _elementwise(optax.scale_by_adamax),
    "adamw": AdamW.Config,
    "adan": _elementwise(optax.scale_by_adan),
    "ademamix": _elementwise(optax.contrib.scale_by_ademamix),
    "adopt": _elementwise(optax.contrib.scale_by_adopt),
    "amsgrad": _elementwise(optax.scale_by_amsgrad),
    "lamb": _per_tensor(optax.scale_by_adam, optax.scale_by_trust_ratio),
    "lion": Lion.Config,
    "muon": Muon.Config,
    "nadamw": _elementwise(optax.scale_by_adam, nesterov=True),
    "novograd": _per_tensor(optax.scale_by_novograd),
    "radam": _elementwise(optax.scale_by_radam),
    "rmsprop": _elementwise(optax.scale_by_rms),
    "sgd": Sgd.Config,
    "sign-sgd": _elementwise(optax.scale_by_sign),
    "sm3": _per_tensor(optax.scale_by_sm3),
    "yogi": _elementwise(optax.scale_by_yogi),
}
