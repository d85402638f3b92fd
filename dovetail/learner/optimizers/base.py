"""The optimizer interface, and wrappers that make any Optax transformation an optimizer.

An optimizer returns an update *direction* to descend, of the gradient's sign. The learner applies
clipping, learning rate, weight decay and the minus sign, so that all optimizers share them. So the
Optax transformation of `Elementwise` and `PerTensor` is `scale_by_adam`, not `adamw`.

A complete Optax optimizer, or a chain that ends like one, is an optimizer as it is:
`optimizer=config_for(optax.adamw, learning_rate=1.0, b1=0.9)`. Its updates have the opposite sign,
because Optax adds them to the parameters; `OptaxOptimizer` turns them into directions. The
learner's schedule still multiplies them, so its own learning rate is 1.

An optimizer that needs more than gradients names it in `required_extras`. The learner takes it from
the gradient computation, and passes it to the transformation by that name, as Optax does with extra
arguments (`optax.GradientTransformationExtraArgs`).

The layers of a stack share one array. An elementwise transformation runs on it directly
(`Elementwise`). One that uses a tensor's norm, rows or columns is mapped over the layers
(`PerTensor`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import optax

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, register_function, wraps
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

Specs = Mapping[str, ParameterSpec]


@runtime_checkable
class Optimizer(Protocol):
    """Turns gradients into update directions."""

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation from gradients to directions, both by path."""
        ...


@runtime_checkable
class UsesExtras(Protocol):
    """An optimizer that needs more than gradients."""

    def required_extras(self) -> tuple[str, ...]:
        """Returns the names of the extras that the transformation's `update` takes."""
        ...


def required_extras(optimizer: Any) -> tuple[str, ...]:
    """Returns the names of the extras that an optimizer needs; most need none."""
    return optimizer.required_extras() if isinstance(optimizer, UsesExtras) else ()


OptimizerConfig = ConfigOf[Optimizer] | ConfigOf[optax.GradientTransformation]
"""An optimizer, or a complete Optax optimizer; `build_optimizer` builds both."""


def build_optimizer(config: OptimizerConfig) -> Optimizer:
    """Builds an optimizer; a complete Optax optimizer becomes an `OptaxOptimizer`."""
    built = config.build()
    if isinstance(built, optax.GradientTransformation):
        return OptaxOptimizer.Config(transform=config).build()
    if not isinstance(built, Optimizer):
        raise ConfigError(
            f"learner.optimizer: {type(config).display_name()} builds a {type(built).__name__}, "
            "which is neither an Optimizer nor an optax.GradientTransformation."
        )
    return built


class OptimizerWrapper(Component):
    """Changes the directions of an inner optimizer; see `replace_inner_optimizer`."""

    class Config(Component.Config["OptimizerWrapper"]):
        optimizer: OptimizerConfig = wraps()

    optimizer: Optimizer

    def required_extras(self) -> tuple[str, ...]:
        """Returns the extras that the inner optimizer needs."""
        return required_extras(self.optimizer)


def replace_inner_optimizer(optimizer: Any, new: OptimizerConfig) -> Any:
    """Returns a config with `new` as the innermost optimizer; wrappers around it stay."""
    if not isinstance(optimizer, OptimizerWrapper.Config):
        return new
    return optimizer.clone(optimizer=replace_inner_optimizer(optimizer.optimizer, new))


class OptaxDirection(Component):
    """The base of optimizers whose direction is any one Optax transformation."""

    class Config(Component.Config["OptaxDirection"]):
        """The transformation, such as `config_for(optax.scale_by_adam, b2=0.95)`.

        `config_for(chain, ...)` chains several.
        """

        transform: ConfigOf[optax.GradientTransformation] = REQUIRED
        extras: tuple[str, ...] = ()  # the extra arguments of its `update`

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.extras = config.extras
        refuse_learning_rate(config.transform, type(self).__name__)
        self.transform = config.transform.build()

    def required_extras(self) -> tuple[str, ...]:
        """Returns the extras of its config."""
        return self.extras


class Elementwise(OptaxDirection):
    """An elementwise Optax transformation, applied to stacked arrays directly."""

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation itself."""
        return self.transform


class PerTensor(OptaxDirection):
    """An Optax transformation of whole tensors, applied to each layer of a stack separately."""

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the transformation, mapped over parameters and layers."""
        return per_tensor(specs, lambda spec: self.transform)


class OptaxOptimizer(Component):
    """A complete Optax optimizer: its updates are added to the parameters, as Optax does.

    The learner multiplies them by its learning rate. So the optimizer's own rate is only a factor,
    usually 1. The transformation gets all parameters by path, stacked layers as one array. One that
    uses norms, rows or columns of a tensor belongs into `PerTensor`.
    """

    class Config(Component.Config["OptaxOptimizer"]):
        """The optimizer, such as `config_for(optax.adamw, learning_rate=1.0)`."""

        transform: ConfigOf[optax.GradientTransformation] = REQUIRED
        extras: tuple[str, ...] = ()  # the extra arguments of its `update`

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.extras = config.extras
        _refuse_direction(config.transform)
        self.transform = config.transform.build()

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the optimizer's updates with the sign of directions."""
        return optax.chain(self.transform, optax.scale(-1.0))

    def required_extras(self) -> tuple[str, ...]:
        """Returns the extras of its config."""
        return self.extras


def per_tensor(
    specs: Specs, choose: Callable[[ParameterSpec], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Applies a transformation to each parameter, and to each layer of a stacked one, separately.

    The state is keyed by path; the state of a stacked parameter has the stacked axes in front. Of
    an extra that is keyed by path, each gets its own; other extras are passed as they are.
    """
    chosen = {path: optax.with_extra_args_support(choose(s)) for path, s in specs.items()}

    def init(params: Arrays) -> Arrays:
        return {path: _over_layers(chosen[path].init, specs[path])(params[path]) for path in params}

    def update(
        updates: Arrays, state: Arrays, params: Arrays | None = None, **extras: Any
    ) -> tuple[Arrays, Arrays]:
        if params is None:
            raise ValueError("per_tensor: update() needs the parameters.")
        by_path = {name: extra for name, extra in extras.items() if _is_by_path(extra, specs)}
        others = {name: extra for name, extra in extras.items() if name not in by_path}
        directions, states = {}, {}
        for path, gradient in updates.items():

            def one(gradient: Any, state: Any, param: Any, own: Any, path: str = path) -> Any:
                return chosen[path].update(gradient, state, param, **own, **others)

            own = {name: extra[path] for name, extra in by_path.items()}
            run = _over_layers(one, specs[path])
            directions[path], states[path] = run(gradient, state[path], params[path], own)
        return directions, states

    return optax.GradientTransformationExtraArgs(init, update)


def partitioned(
    groups: Mapping[str, tuple[Sequence[str], optax.GradientTransformation]],
) -> optax.GradientTransformation:
    """Applies a transformation to each group of parameters: (paths, transformation) by name.

    The state is a dict by name of the group. Of an extra that is keyed by path, each group gets
    its own; other extras are passed as they are.
    """
    all_paths = [path for paths, _ in groups.values() for path in paths]

    def init(params: Arrays) -> dict[str, Any]:
        return {name: t.init(_select(paths, params)) for name, (paths, t) in groups.items()}

    def update(
        updates: Arrays, state: dict[str, Any], params: Arrays | None = None, **extras: Any
    ) -> tuple[Arrays, dict[str, Any]]:
        directions: Arrays = {}
        states = {}
        for name, (paths, transformation) in groups.items():
            some = None if params is None else _select(paths, params)
            own = {
                key: _select(paths, extra) if _is_by_path(extra, all_paths) else extra
                for key, extra in extras.items()
            }
            run = optax.with_extra_args_support(transformation).update
            found, states[name] = run(_select(paths, updates), state[name], some, **own)
            directions |= found
        return directions, states

    return optax.GradientTransformationExtraArgs(init, update)


def _select(paths: Sequence[str], arrays: Arrays) -> Arrays:
    return {path: arrays[path] for path in paths}


def _is_by_path(extra: Any, paths: Collection[str]) -> bool:
    """Returns whether an extra is a dict with an entry for each of the parameters."""
    return isinstance(extra, dict) and set(extra) == set(paths)


def chain(transforms: Sequence[optax.GradientTransformation]) -> optax.GradientTransformation:
    """Chains transformations in order: `config_for(chain, transforms=[config_for(...), ...])`."""
    return optax.chain(*transforms)


def refuse_learning_rate(config: ConfigOf[Any], owner: str) -> None:
    """Rejects a complete Optax optimizer, which applies its own learning rate and sign."""
    if "learning_rate" in config.fields():
        raise ConfigError(
            f"{owner}: {type(config).display_name()} has its own learning rate, but the "
            "learner applies learning rate, decay and sign. Use the transformation that only sets "
            "the direction, such as optax.scale_by_adam instead of optax.adamw; or make the "
            "complete one the learner's: optimizer=config_for(optax.adamw, learning_rate=1.0)."
        )


def _refuse_direction(config: ConfigOf[Any]) -> None:
    """Rejects a transformation whose result has the gradient's sign: adding it would ascend."""
    name = type(config).display_name()
    if name in _DIRECTIONS:
        raise ConfigError(
            f"OptaxOptimizer: {name} gives a direction of the gradient's sign, and Optax adds what "
            f"an optimizer returns. Use Elementwise.Config(transform=config_for({name})), or "
            "PerTensor if it uses norms, rows or columns of a tensor."
        )


def _over_layers(function: Callable[..., Any], spec: ParameterSpec) -> Callable[..., Any]:
    for _ in range(spec.stacked):
        function = jax.vmap(function)
    return function


# The transformations that config text may name. Left out: those that need more than a gradient
# (line searches).
_LISTED = """
centralize clip clip_by_block_rms ema identity normalize_by_update_norm scale scale_by_adadelta
scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad scale_by_belief scale_by_factored_rms
scale_by_lion scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm
scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rprop scale_by_rss scale_by_sign
scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi trace
"""
_LISTED_CONTRIB = "scale_by_acprop scale_by_ademamix scale_by_adopt scale_by_muon"
_DIRECTIONS = [
    *(f"optax:{name}" for name in _LISTED.split()),
    *(f"optax.contrib:{name}" for name in _LISTED_CONTRIB.split()),
]
_OPTIMIZERS = """
adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion
nadam nadamw noisy_sgd novograd optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd sm3
yogi
"""
for _name in (*_DIRECTIONS, *(f"optax:{name}" for name in _OPTIMIZERS.split())):
    register_function(_name)
register_function(f"{__name__}:chain")
