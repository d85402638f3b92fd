"""Finding the family whose format can say a model: by trying, for families are only data here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dovetail.config import Config, ConfigError, all_values, did_you_mean, visit
from dovetail.layers import Places
from dovetail.models import CausalLM, Family, families
from dovetail.module import Tensor, functional, match_weights, parameter_specs, variable_specs

# Fields, anywhere in a tree, that do not change which function of tokens a trained model is.
_NO_MATTER = frozenset(
    {
        *("weight_init", "loss", "losses", "rate", "dispatch", "remat", "unroll", "dropout"),
        *("dtype", "product"),  # how precisely it is computed
    }
)

# Added to how far a family is from a model that it cannot say at all.
_REFUSED = 10**6
_LISTED = 10
_ADVICE = (
    "Give the model what the format can say, or say it in a format of your own: that is one file, "
    "see dovetail.models.Family and --import."
)

# What a family may raise over parts that are not its own: it reads the fields that it expects.
_STUMBLES = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)

_SPECS = (parameter_specs, variable_specs)
_TRACED_TOKENS = 8


def model_tensors(family: Family, model: CausalLM) -> dict[str, Tensor]:
    """Returns every tensor that the files of a model of this family hold, by name."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    return match_weights(family.weights, specs, optional=list(variables))


def family_of(
    config: Config[Any], first: str = "", only: str | None = None
) -> tuple[Family, dict[str, Any]]:
    """Returns a family that says exactly this model, and the model in its words.

    Args:
        config: the model.
        first: the `model_type` to try first: several families may say the same model.
        only: the name of the one family to try.
    """
    known = families()
    if only is not None and only not in known:
        raise ConfigError(f"There is no family {only!r}. {did_you_mean(only, known)}")
    candidates = [known[only]] if only is not None else known.values()
    refusals: list[tuple[int, str]] = []
    for family in sorted(candidates, key=lambda family: family.model_type != first):
        try:
            said, changes = say(family, config)
        except (ConfigError, *_STUMBLES) as error:
            refusals.append(_refusal(family, config, error))
        else:
            if not changes:
                return family, said
            listed = "\n  ".join(_outermost(changes)[:_LISTED])
            told = f"{family.name} comes nearest; with it the model would change:\n  {listed}\n"
            refusals.append((len(changes), told))
    raise ConfigError(
        "No known format says exactly this model, so other programs would compute something else. "
        + min(refusals, default=(0, "There are no families. "))[1]
        + _ADVICE
    )


def say(family: Family, config: Any) -> tuple[dict[str, Any], list[str]]:
    """Says a model in a family's words, and returns what would differ when it is read back."""
    said = family.to_hf(config)
    there = family.from_hf(said)
    changes = differences(config, there)
    # What is left out is derived: as many key-value heads as heads, for one. Building will tell.
    derived = all(": None -> " in change or change.endswith(" -> None") for change in changes)
    return said, [] if changes and derived and _same_program(config, there) else changes


def differences(here: Config[Any], there: Config[Any]) -> list[str]:
    """Returns the values in which two models compute differently, as lines for people."""
    before, after = _that_matter(all_values(here)), _that_matter(all_values(there))
    return [
        f"{path or '(root)'}: {before.get(path, '(absent)')} -> {after.get(path, '(absent)')}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def _refusal(family: Family, config: Config[Any], error: Exception) -> tuple[int, str]:
    """Returns how far a family is from a model that it cannot say, and which part is the reason."""
    here, there = _parts(config), _parts(family.from_hf(family.tiny()))
    other = [path for path in {**here, **there} if here.get(path) != there.get(path)]
    # Its tiny form has parts that its other models lack; only what the error is about is told.
    reasons = [
        f"\n  {path} is a {here[path]} here, and a {there[path]} there"
        for path in other
        if path in here and path in there and re.search(rf"{re.escape(path)}\b", str(error))
    ]
    told = f"{family.name} comes nearest, and cannot say it: {error}{''.join(reasons[-1:])}\n"
    return _REFUSED + len(other), told


def _parts(config: Config[Any]) -> dict[str, str]:
    """Returns which part stands at each path."""
    named = {path: type(found).display_name() for path, found in visit(config.clone())}
    return _that_matter(named)


def _outermost(changes: list[str]) -> list[str]:
    """Leaves out what differs inside of a part that is another one anyway."""
    swapped = [c.partition(": ")[0] + "." for c in changes if "() -> " in c or c.endswith("()")]
    return [change for change in changes if not change.startswith(tuple(swapped))]


def _same_program(here: Any, there: Any) -> bool:
    """Says whether two models have the same parameters and trace to the same program."""
    left, right = _neutral(here).build(), _neutral(there).build()
    shapes = [{p: spec.shape for p, spec in parameter_specs(m).items()} for m in (left, right)]
    return shapes[0] == shapes[1] and _program(left) == _program(right)


def _neutral(config: Any) -> Any:
    """Returns a copy in which every field that does not matter has its default."""
    copy = config.clone()
    for _, inner in list(visit(copy)):
        defaults = type(inner)()
        inner.set(**{name: getattr(defaults, name) for name in _NO_MATTER & inner.fields().keys()})
    return copy


def _program(model: Any) -> tuple[str, list[bytes]]:
    """Returns what a model computes for a few tokens, as text and constants."""
    structs = [{p: spec.struct() for p, spec in find(model).items()} for find in _SPECS]
    tokens = jax.ShapeDtypeStruct((1, _TRACED_TOKENS), "int32")

    def scores(params: Any, variables: Any, tokens: jax.Array) -> Any:
        inputs = (tokens, Places(tokens, tokens))
        options: dict[str, Any] = {"method": "all_logits", "losses": "discard"}
        return functional(model, params, inputs, variables=variables, **options)[0]

    traced = jax.make_jaxpr(scores)(*structs, tokens)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(traced))  # where functions lie in memory
    return text, [np.asarray(constant).tobytes() for constant in traced.consts]


def _that_matter(values: Mapping[str, str]) -> dict[str, str]:
    return {path: v for path, v in values.items() if not _NO_MATTER & set(path.split("."))}
