"""One experiment with one feature: does it apply, build, trace and run?"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, find, to_text
from dovetail.experiments import experiments
from dovetail.features import Feature, features, named_component
from dovetail.modularity.ownership import dotted_name

TRAINED_STEPS = 2
_PREFILL_LENGTH, _CACHE_LENGTH = 4, 8
_MAX_CACHED_SPECS = 500
_DENSE = "tiny-lm"


@dataclass(frozen=True)
class PairResult:
    """The result of one experiment with one feature.

    Attributes:
        experiment: its name.
        feature: its name.
        outcome: "works"; "unchanged", if the config has the feature already; "not applicable", as
            the feature declares; "conflict", if the feature excludes a component of the experiment
            although the result would build; "fails".
        detail: why it is not applicable, or what failed.
        stage: the last stage reached: "applied", "built", "traced" or "executed".
        added: how many parameters it adds; negative if it removes some.
        differing: how many arrays are added, removed, or change shape, dtype or axes.
    """

    experiment: str
    feature: str
    outcome: str
    detail: str = ""
    stage: str = "applied"
    added: int = 0
    differing: int = 0


def build_pair(experiment: str, feature: str) -> PairResult:
    """Applies a feature to an experiment at full size, and compares the parameter specs."""
    wanted = features()[feature]
    plain, text = _full(experiment)
    try:
        if (why := wanted.refusal(plain)) is not None:
            outcome, detail = _checked_refusal(wanted, plain, why)
            return PairResult(experiment, feature, outcome, detail)
        changed = wanted.apply(plain)
        changed_text = to_text(changed)
        if changed_text == text:
            return PairResult(experiment, feature, "unchanged", stage="built")
        before, after = _arrays(text, plain), _arrays(changed_text, changed)
    except Exception as error:  # noqa: BLE001  # any failure is a result
        return _failed(experiment, feature, "applied", error)
    common = before.keys() & after.keys()
    return PairResult(
        experiment,
        feature,
        "works",
        stage="built",
        added=_size(after) - _size(before),
        differing=sum(before[path] != after[path] for path in common)
        + len(before.keys() ^ after.keys()),
    )


def trace_pair(experiment: str, feature: str) -> PairResult:
    """Traces a training step of the tiny model with the feature; decoding, if the model changed.

    Decoding of the unchanged model is traced in any case. A model without logits does not decode.
    """
    try:
        trainer = _tiny_trainer(experiment, feature)
        _ = trainer.program().traced
        changed = _model_text(trainer) != _unmodified_model_text(experiment)
        if changed and _can_decode(trainer):
            decoding_jaxpr(trainer)
    except Exception as error:  # noqa: BLE001  # as above
        return _failed(experiment, feature, "built", error)
    return PairResult(experiment, feature, "works", stage="traced")


def execute_pair(experiment: str, feature: str) -> PairResult:
    """Trains the tiny model for a few steps, and generates a few tokens.

    The dense model runs every trial that the feature declares, others only the first. Trials that
    result in the same model generate once.
    """
    generated: set[str] = set()
    for trial in _trials(experiment, feature):
        try:
            trainer = _tiny_trainer(experiment, feature, trial)
            params, variables = _train(trainer)
            if _can_decode(trainer) and _model_text(trainer) not in generated:
                _generate(trainer, params, variables)
                generated.add(_model_text(trainer))
        except Exception as error:  # noqa: BLE001  # as above
            failed = _failed(experiment, feature, "traced", error)
            arguments = "".join(f"{name}={value}: " for name, value in trial.items())
            return replace(failed, detail=arguments + failed.detail)
    return PairResult(experiment, feature, "works", stage="executed")


def tiny_text(experiment: str) -> str:
    """Returns the config text of a tiny model; sizes of one family share it."""
    return to_text(experiments()[experiment].tiny())


def decoding_jaxpr(trainer: Any) -> Any:
    """Traces the prefill of a prompt and the decoding of one token."""
    import jax
    import jax.numpy as jnp

    from dovetail.generate import with_kv_cache
    from dovetail.layers import TokenContext
    from dovetail.module import functional

    model = with_kv_cache(trainer.model.config, _CACHE_LENGTH).build()
    structs = _structs(trainer)

    def decode(params: Any, variables: Any) -> Any:
        def logits(length: int, cache: Any) -> Any:
            tokens = jnp.zeros((1, length), jnp.int32)
            context = TokenContext(tokens, jnp.ones_like(tokens))
            inputs = (tokens, context, jnp.zeros(1, jnp.int32))
            options = {"variables": variables, "cache": cache, "losses": "discard"}
            return functional(model, params, inputs, method="logits", **options)

        _, outputs = logits(_PREFILL_LENGTH, {})
        return logits(1, outputs.cache)[0]

    return jax.make_jaxpr(decode)(*structs)


def _checked_refusal(wanted: Feature, plain: Any, why: str) -> tuple[str, str]:
    """Returns the outcome and detail of a feature that declares that it does not apply.

    Applied nonetheless, it must change nothing or fail to build. It may also exclude components
    that it owns, or that a feature it builds on owns. Any other exclusion is a conflict.
    """
    if _excludes_owned(wanted, plain) or not _changes(wanted, plain):
        return "not applicable", why
    if why.startswith("it has no "):
        return "fails", f"declared not applicable ({why}), but it changes the experiment"
    return "conflict", why


def _excludes_owned(wanted: Feature, plain: Any) -> bool:
    owners = [wanted, *(features()[name] for name in wanted.builds_on)]
    owned = [f"{dotted_name(code)}." for owner in owners for code in owner.files]
    found = (name for name in wanted.excludes if find(plain, named_component(name)) is not None)
    names = [f"{name.replace(':', '.')}." for name in found]
    return any(name.startswith(one) for name in names for one in owned)


def _changes(wanted: Feature, plain: Any) -> bool:
    try:
        changed = wanted.unchecked(plain.clone())
        _ = changed.build().model
    except ConfigError:  # refused by the config; any other error is a failure
        return False
    return to_text(changed) != to_text(plain)


@functools.lru_cache(maxsize=4)
def _full(experiment: str) -> tuple[Any, str]:
    config = experiments()[experiment].config()
    return config, to_text(config)


_Arrays = dict[str, tuple[tuple[int, ...], str, Any]]
_known: dict[str, _Arrays] = {}


def _arrays(text: str, config: Any) -> _Arrays:
    """Returns the shape, dtype and axes of every parameter, cached by config text."""
    if text not in _known:
        from dovetail.module import parameter_specs

        if len(_known) == _MAX_CACHED_SPECS:
            _known.clear()
        specs = parameter_specs(config.build().model)
        _known[text] = {path: (one.shape, one.dtype, one.axes) for path, one in specs.items()}
    return _known[text]


def _size(arrays: _Arrays) -> int:
    return sum(math.prod(shape) for shape, _, _ in arrays.values())


def _trials(experiment: str, feature: str) -> tuple[Mapping[str, Any], ...]:
    trials = features()[feature].trials if feature else ({},)
    return trials if experiment == _DENSE else trials[:1]


def _tiny_trainer(experiment: str, feature: str, trial: Mapping[str, Any] | None = None) -> Any:
    from dovetail.parallel import MeshLayout

    config = experiments()[experiment].tiny()
    if feature:
        wanted = features()[feature]
        config = wanted.apply(config, **(wanted.trial if trial is None else trial))
    mesh = MeshLayout.Config(data=-1, fsdp=1)
    return config.set(steps=TRAINED_STEPS, writers={}, evaluators={}, mesh=mesh).build()


def _can_decode(trainer: Any) -> bool:
    return hasattr(trainer.model, "logits")


def _model_text(trainer: Any) -> str:
    return to_text(trainer.model.config)


@functools.lru_cache(maxsize=4)
def _unmodified_model_text(experiment: str) -> str:
    return _model_text(_tiny_trainer(experiment, ""))


def _train(trainer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains, and returns the parameters and variables of the last checkpoint."""
    import jax

    params, variables = _structs(trainer)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # where the generator runs
    like = {
        path: jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=one)
        for path, struct in (params | variables).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = trainer.train(Path(folder))
        losses = [loss for _, loss in outcome.losses]
        if outcome.step != TRAINED_STEPS or not all(map(math.isfinite, losses)):
            raise FloatingPointError(f"after {outcome.step} steps the losses are {losses}")
        _, arrays = trainer.checkpointer.restore_parameters(like)
    return {path: arrays[path] for path in params}, {path: arrays[path] for path in variables}


def _structs(trainer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the structs of parameters and variables."""
    from dovetail.module import parameter_specs, variable_specs

    params, variables = parameter_specs(trainer.model), variable_specs(trainer.model)
    return (
        {path: spec.struct() for path, spec in params.items()},
        {path: spec.struct() for path, spec in variables.items()},
    )


def _generate(trainer: Any, params: dict[str, Any], variables: dict[str, Any]) -> None:
    from dovetail.generate import Generator

    generator = Generator(trainer.model.config, params, variables=variables, length=_CACHE_LENGTH)
    generator.generate([[1, 2, 3]], max_new_tokens=3)


def _failed(experiment: str, feature: str, stage: str, error: Exception) -> PairResult:
    lines = str(error).strip().splitlines() or [""]
    return PairResult(experiment, feature, "fails", f"{type(error).__name__}: {lines[0]}", stage)
