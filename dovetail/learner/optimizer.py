"""What an optimizer is here, and how any Optax transformation becomes one.

An optimizer gives a *direction*, pointing where the gradient points. Learning rate, weight decay,
clipping and the step against the direction are the learner's, so that all optimizers share them.
From Optax it therefore takes `scale_by_adam`, not `adamw`.

Layers of a stack share one array. What treats every number by itself may run on it as it is
(`Elementwise`). What looks at a tensor as a whole, its norm, its rows and columns, must see one
layer at a time (`PerTensor`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import optax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, Part, register_function, wraps
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

Specs = Mapping[str, ParameterSpec]


@runtime_checkable
class Optimizer(Protocol):
    """Gives the direction in which parameters are updated."""

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation from gradients to directions, both keyed by path."""
        ...


class ChangedOptimizer(Part):
    """What changes the directions of another optimizer; `with_directions` swaps the one inside."""

    class Config(Part.Config["ChangedOptimizer"]):
        """What gives the directions."""

        optimizer: ConfigOf[Optimizer] = wraps()


def with_directions(optimizer: Any, new: ConfigOf[Optimizer]) -> Any:
    """Returns a config with `new` in the place of the optimizer; what stands around it stays."""
    if not isinstance(optimizer, ChangedOptimizer.Config):
        return new
    return optimizer.clone(optimizer=with_directions(optimizer.optimizer, new))


class Elementwise(Part):
    """An Optax transformation that treats each number by itself, on stacked arrays as they are."""

    class Config(Part.Config["Elementwise"]):
        """The transformation, such as `config_for(optax.scale_by_adam, b2=0.95)`."""

        transform: ConfigOf[optax.GradientTransformation] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        refuse_learning_rate(config.transform, type(self).__name__)
        self.transform = config.transform.build()

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation itself."""
        return self.transform


class PerTensor(Part):
    """An Optax transformation that looks at whole tensors, run on each layer of a stack alone."""

    class Config(Part.Config["PerTensor"]):
        """The transformation, as for one array; `config_for(chain, ...)` joins several."""

        transform: ConfigOf[optax.GradientTransformation] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        refuse_learning_rate(config.transform, type(self).__name__)
        self.transform = config.transform.build()

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation, mapped over parameters and layers."""
        return per_tensor(specs, lambda spec: self.transform)


def per_tensor(
    specs: Specs, choose: Callable[[ParameterSpec], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Runs a transformation for each parameter alone, and for each layer of a stacked one alone.

    Its state is kept by path; what the transformation keeps for a tensor has the stacked axes in
    front.
    """
    chosen = {path: choose(spec) for path, spec in specs.items()}

    def init(params: Arrays) -> Arrays:
        return {path: _over_layers(chosen[path].init, specs[path])(params[path]) for path in params}

    def update(
        updates: Arrays, state: Arrays, params: Arrays | None = None
    ) -> tuple[Arrays, Arrays]:
        if params is None:
            raise ValueError("per_tensor: the parameters must be given to update().")
        directions, states = {}, {}
        for path, gradient in updates.items():
            run = _over_layers(chosen[path].update, specs[path])
            directions[path], states[path] = run(gradient, state[path], params[path])
        return directions, states

    return optax.GradientTransformation(init, update)


def chain(transforms: Sequence[optax.GradientTransformation]) -> optax.GradientTransformation:
    """Joins transformations in order: `config_for(chain, transforms=[config_for(...), ...])`."""
    return optax.chain(*transforms)


def refuse_learning_rate(config: ConfigOf[Any], owner: str) -> None:
    """Refuses a complete Optax optimizer: it would apply a rate of its own and step backwards."""
    if "learning_rate" in config.fields():
        raise ConfigError(
            f"{owner}: {type(config).display_name()} has a learning rate of its own, but the "
            "learner applies learning rate, decay and sign. Give the part that only sets the "
            "direction, such as optax.scale_by_adam instead of optax.adamw."
        )


def _over_layers(function: Callable[..., Any], spec: ParameterSpec) -> Callable[..., Any]:
    for _ in range(spec.stacked):
        function = jax.vmap(function)
    return function


# What config text may name. Left out: what needs more than a gradient (line searches), and learning
# rates.
_LISTED = """
centralize clip clip_by_block_rms ema identity normalize_by_update_norm scale scale_by_adadelta
scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad scale_by_belief scale_by_factored_rms
scale_by_lion scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm
scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rprop scale_by_rss scale_by_sign
scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi trace
"""
for _name in _LISTED.split():
    register_function(f"optax:{_name}")
for _name in ("scale_by_acprop", "scale_by_ademamix", "scale_by_adopt", "scale_by_muon"):
    register_function(f"optax.contrib:{_name}")
register_function(f"{__name__}:chain")
