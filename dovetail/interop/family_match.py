"""Finds a family whose format expresses a model exactly, by trying every family."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dovetail.config import Config, ConfigError, all_values, did_you_mean, visit
from dovetail.layers import TokenContext
from dovetail.models import ModelFamily, families
from dovetail.module import (
    ForeignTensor,
    Module,
    functional,
    match_weights,
    parameter_specs,
    variable_specs,
)

# Config fields that do not change what a trained model computes.
_IRRELEVANT = frozenset(
    {
        *("weight_init", "loss", "losses", "rate", "dispatch", "remat", "unroll", "dropout"),
        *("dtype", "matmul"),  # the precision of the computation
    }
)

# Added to the distance of a family that cannot express a model at all.
_REFUSED = 10**6
_LISTED = 10
_ADVICE = (
    "Change the model to what the format supports, or write a family of your own in one file: "
    "see dovetail.models.ModelFamily and --import."
)

# A family may raise these for components of other families: it reads the fields it expects.
_OTHER_ERRORS = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)

_SPECS = (parameter_specs, variable_specs)
_TRACED_TOKENS = 8


def model_tensors(family: ModelFamily, model: Module) -> dict[str, ForeignTensor]:
    """Returns every tensor of a checkpoint of this model, by name."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    return match_weights(family.weights, specs, optional=list(variables))


def matching_family(
    config: Config[Any], first: str = "", only: str | None = None
) -> tuple[ModelFamily, dict[str, Any]]:
    """Returns a family that expresses a model exactly, and the model's config.json.

    Args:
        config: the model.
        first: the `model_type` to try first, since several families may express the model.
        only: the name of the only family to try.
    """
    known = families()
    if only is not None and only not in known:
        raise ConfigError(f"There is no family {only!r}. {did_you_mean(only, known)}")
    candidates = [known[only]] if only is not None else known.values()
    refusals: list[tuple[int, str]] = []
    for family in sorted(candidates, key=lambda family: family.model_type != first):
        try:
            hf_config, changes = express(family, config)
        except (ConfigError, *_OTHER_ERRORS) as error:
            refusals.append(_refusal(family, config, error))
        else:
            if not changes:
                return family, hf_config
            listed = "\n  ".join(_outermost(changes)[:_LISTED])
            message = f"{family.name} is the nearest; with it the model would change:\n  {listed}\n"
            refusals.append((len(changes), message))
    raise ConfigError(
        "No known format expresses this model exactly, so other programs would compute something "
        "else. " + min(refusals, default=(0, "There are no families. "))[1] + _ADVICE
    )


def express(family: ModelFamily, config: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the config.json of a model, and what differs when it is read back."""
    kind = type(family.from_hf(family.tiny()))
    if not isinstance(config, kind):
        raise ConfigError(
            f"its models are built by {kind.display_name()}, not {type(config).display_name()}."
        )
    hf_config = family.to_hf(config)
    read_back = family.from_hf(hf_config)
    changes = differences(config, read_back)
    # None stands for a derived value, such as num_kv_heads = num_heads: compare the programs.
    derived = all(": None -> " in change or change.endswith(" -> None") for change in changes)
    if changes and derived and _same_program(family, config, read_back):
        changes = []
    return hf_config, changes


def differences(left: Config[Any], right: Config[Any]) -> list[str]:
    """Returns the config values in which two models differ, as lines of text."""
    before, after = _relevant(all_values(left)), _relevant(all_values(right))
    return [
        f"{path or '(root)'}: {before.get(path, '(absent)')} -> {after.get(path, '(absent)')}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def _refusal(family: ModelFamily, config: Config[Any], error: Exception) -> tuple[int, str]:
    """Returns the distance of a family that cannot express a model, and the reason."""
    here, there = _components(config), _components(family.from_hf(family.tiny()))
    other = [path for path in {**here, **there} if here.get(path) != there.get(path)]
    # Its tiny model has components that its other models lack; report only those in the error.
    reasons = [
        f"\n  {path} is a {here[path]} here and a {there[path]} there"
        for path in other
        if path in here and path in there and re.search(rf"{re.escape(path)}\b", str(error))
    ]
    reason = f"{error}{''.join(reasons[-1:])}"
    message = f"{family.name} is the nearest, and cannot express it: {reason}\n"
    return _REFUSED + len(other), message


def _components(config: Config[Any]) -> dict[str, str]:
    """Returns the name of the component at each path."""
    named = {path: type(found).display_name() for path, found in visit(config.clone())}
    return _relevant(named)


def _outermost(changes: list[str]) -> list[str]:
    """Drops changes inside a component that was replaced as a whole."""
    swapped = [c.partition(": ")[0] + "." for c in changes if "() -> " in c or c.endswith("()")]
    return [change for change in changes if not change.startswith(tuple(swapped))]


def _same_program(family: ModelFamily, here: Any, there: Any) -> bool:
    """Whether two models have the same parameters and trace to the same program."""
    left, right = _neutral(here).build(), _neutral(there).build()
    shapes = [{p: spec.shape for p, spec in parameter_specs(m).items()} for m in (left, right)]
    if shapes[0] != shapes[1]:
        return False
    run: Callable[..., Any] = _logits
    inputs: Any = jax.ShapeDtypeStruct((1, _TRACED_TOKENS), "int32")
    if family.input is not None:
        spec = family.input(left.config).build().spec()
        run, inputs = _losses, jax.tree.map(lambda leaf: leaf.struct(), spec)
    return _program(run, left, inputs) == _program(run, right, inputs)


def _neutral(config: Any) -> Any:
    """Returns a copy in which every irrelevant field has its default."""
    copy = config.clone()
    for _, inner in list(visit(copy)):
        defaults = type(inner)()
        inner.set(**{name: getattr(defaults, name) for name in _IRRELEVANT & inner.fields().keys()})
    return copy


def _logits(model: Any, params: Any, variables: Any, tokens: jax.Array) -> Any:
    """Returns the logits of a language model for a few tokens."""
    inputs = (tokens, TokenContext(tokens, tokens))
    options: dict[str, Any] = {"method": "all_logits", "losses": "discard"}
    return functional(model, params, inputs, variables=variables, **options)[0]


def _losses(model: Any, params: Any, variables: Any, batch: Any) -> Any:
    """Returns the losses of another model for a batch of its family's input."""
    outputs = functional(model, params, (batch,), variables=variables, losses="return")[1]
    return {name: loss.value() for name, loss in outputs.losses.items()}


def _program(run: Callable[..., Any], model: Any, inputs: Any) -> tuple[str, list[bytes]]:
    """Returns the jaxpr of a model for these inputs, as text and constants."""
    structs = [{p: spec.struct() for p, spec in find(model).items()} for find in _SPECS]
    traced = jax.make_jaxpr(functools.partial(run, model))(*structs, inputs)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(traced))  # addresses of functions
    return text, [np.asarray(constant).tobytes() for constant in traced.consts]


def _relevant(values: Mapping[str, str]) -> dict[str, str]:
    return {path: v for path, v in values.items() if not _IRRELEVANT & set(path.split("."))}
