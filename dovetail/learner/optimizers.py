"""The optimizers known by name, thin parts over Optax.

Any other Optax transformation goes in through `Elementwise` or `PerTensor`.
"""

from __future__ import annotations

import optax

from dovetail.config import Part
from dovetail.learner.optimizer import Specs, per_tensor


class AdamW(Part):
    """Adam (arXiv 1412.6980); with the learner's decoupled decay it is AdamW (arXiv 1711.05101)."""

    class Config(Part.Config["AdamW"]):
        """The moments' decays; b2=0.95 as language models are commonly trained."""

        b1: float = 0.9
        b2: float = 0.95
        eps: float = 1e-8
        mu_dtype: str | None = None  # of the first moment; None: the parameter's

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.transform = optax.scale_by_adam(
            config.b1, config.b2, config.eps, mu_dtype=config.mu_dtype
        )

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns Adam's direction."""
        return self.transform


class Lion(Part):
    """The sign of an interpolated momentum (arXiv 2302.06675).

    It wants a rate three to ten times smaller than AdamW's, and a decay as much larger.
    """

    class Config(Part.Config["Lion"]):
        """The two interpolations."""

        b1: float = 0.9
        b2: float = 0.99
        mu_dtype: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.transform = optax.scale_by_lion(config.b1, config.b2, mu_dtype=config.mu_dtype)

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns Lion's direction: every number is -1, 0 or 1."""
        return self.transform


class Sgd(Part):
    """The gradient itself, with momentum."""

    class Config(Part.Config["Sgd"]):
        """How much of the earlier direction is kept; 0 keeps no state at all."""

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


class Adafactor(Part):
    """Adam with the second moment of a matrix kept as rows and columns (arXiv 1804.04235).

    Updates are relative to each tensor's own size, so rates are larger than AdamW's: 1e-2 is usual.
    """

    class Config(Part.Config["Adafactor"]):
        """As published; `momentum` costs what the factors save."""

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
