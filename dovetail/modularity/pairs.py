"""One experiment with one feature: does it make sense, build, trace and run?"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, find, to_text
from dovetail.experiments import experiments
from dovetail.features import Feature, features, named_part
from dovetail.modularity.paths import module_of

TRAINED_STEPS = 2
_PREFILLED, _HELD = 4, 8
_REMEMBERED = 500
_PLAIN = "tiny-lm"


@dataclass(frozen=True)
class Pair:
    """What was found out about an experiment and a feature.

    Attributes:
        experiment: its name.
        feature: its name.
        outcome: "works"; "has it", where the feature changes nothing; "no sense", where it declares
            that it makes none; "conflict", where it declares that it does not go with something
            which the experiment has, though it could be built; "fails".
        detail: why it makes no sense, or what failed.
        stage: the last stage that was reached: "applied", "built", "traced" or "executed".
        added: how many parameters it adds; negative where it takes some away.
        differing: how many arrays come, go, or have another shape, type or axes.
    """

    experiment: str
    feature: str
    outcome: str
    detail: str = ""
    stage: str = "applied"
    added: int = 0
    differing: int = 0

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def built_pair(experiment: str, feature: str) -> Pair:
    """Applies a feature to an experiment of full size, and compares the parameters' specs."""
    wanted = features()[feature]
    plain, text = _full(experiment)
    try:
        if (why := wanted.refusal(plain)) is not None:
            outcome, detail = _checked_refusal(wanted, plain, why)
            return Pair(experiment, feature, outcome, detail)
        changed = wanted.apply(plain)
        changed_text = to_text(changed)
        if changed_text == text:
            return Pair(experiment, feature, "has it", stage="built")
        before, after = _arrays(text, plain), _arrays(changed_text, changed)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what the matrix is for
        return _failed(experiment, feature, "applied", error)
    kept = before.keys() & after.keys()
    return Pair(
        experiment,
        feature,
        "works",
        stage="built",
        added=_size(after) - _size(before),
        differing=sum(before[path] != after[path] for path in kept)
        + len(before.keys() ^ after.keys()),
    )


def traced_pair(experiment: str, feature: str) -> Pair:
    """Traces a training step of the tiny form with the feature; decoding, if the model is another.

    A model that resolves to the same is the same: the plain form's decoding is traced anyway.
    """
    try:
        trainer = _tiny_trainer(experiment, feature)
        _ = trainer.program().traced
        if _model_text(trainer) != _plain_model_text(experiment):
            decoding_jaxpr(trainer)
    except Exception as error:  # noqa: BLE001  # as above
        return _failed(experiment, feature, "built", error)
    return Pair(experiment, feature, "works", stage="traced")


def executed_pair(experiment: str, feature: str) -> Pair:
    """Trains the tiny form for a few steps, and lets the result write a few tokens.

    On the plain one with every trial that the feature declares, on others with the first. Of those
    trials that leave the model as it is, only the first writes.
    """
    written: set[str] = set()
    for trial in _trials(experiment, feature):
        try:
            trainer = _tiny_trainer(experiment, feature, trial)
            params, variables = _train(trainer)
            if _model_text(trainer) not in written:
                _generate(trainer, params, variables)
                written.add(_model_text(trainer))
        except Exception as error:  # noqa: BLE001  # as above
            failed = _failed(experiment, feature, "traced", error)
            said = "".join(f"{name}={value}: " for name, value in trial.items())
            return replace(failed, detail=said + failed.detail)
    return Pair(experiment, feature, "works", stage="executed")


def tiny_text(experiment: str) -> str:
    """Returns the text of a tiny form: experiments of one family share it."""
    return to_text(experiments()[experiment].tiny())


def decoding_jaxpr(trainer: Any) -> Any:
    """Traces the reading of a prompt and one further token."""
    import jax
    import jax.numpy as jnp

    from dovetail.generate import with_memory
    from dovetail.layers import Places
    from dovetail.module import functional

    model = with_memory(trainer.model.config, _HELD).build()
    structs = _structs(trainer)

    def decode(params: Any, variables: Any) -> Any:
        def logits(length: int, cache: Any) -> Any:
            tokens = jnp.zeros((1, length), jnp.int32)
            places = Places(tokens, jnp.ones_like(tokens))
            inputs = (tokens, places, jnp.zeros(1, jnp.int32))
            options = {"variables": variables, "cache": cache, "losses": "discard"}
            return functional(model, params, inputs, method="logits", **options)

        _, outputs = logits(_PREFILLED, {})
        return logits(1, outputs.cache)[0]

    return jax.make_jaxpr(decode)(*structs)


def _checked_refusal(wanted: Feature, plain: Any, why: str) -> tuple[str, str]:
    """Returns outcome and detail. A refusal must be one: applied all the same, nothing may come.

    A feature may also refuse what is its own, or of what it builds on, since that is there already.
    What it refuses beside that is its word alone, and is told apart.
    """
    if _has_its_own(wanted, plain) or not _changes(wanted, plain):
        return "no sense", why
    if why.startswith("it has no "):
        return "fails", f"declared to make no sense ({why}), but it changes the experiment"
    return "conflict", why


def _has_its_own(wanted: Feature, plain: Any) -> bool:
    owners = [wanted, *(features()[name] for name in wanted.builds_on)]
    modules = {module_of(file) for owner in owners for file in owner.files}
    parts = (part for part in wanted.excludes if find(plain, named_part(part)) is not None)
    return any(part.startswith((f"{one}:", f"{one}.")) for part in parts for one in modules)


def _changes(wanted: Feature, plain: Any) -> bool:
    try:
        changed = wanted.unchecked(plain.clone())
        _ = changed.build().model
    except ConfigError:  # it says itself that it cannot be; any other error is a failure
        return False
    return to_text(changed) != to_text(plain)


@functools.lru_cache(maxsize=4)
def _full(experiment: str) -> tuple[Any, str]:
    config = experiments()[experiment].config()
    return config, to_text(config)


_Arrays = dict[str, tuple[tuple[int, ...], str, Any]]
_known: dict[str, _Arrays] = {}


def _arrays(text: str, config: Any) -> _Arrays:
    """Returns shape, type and axes of every parameter, from specs, once a resolved text."""
    if text not in _known:
        from dovetail.module import parameter_specs

        if len(_known) == _REMEMBERED:
            _known.clear()
        specs = parameter_specs(config.build().model)
        _known[text] = {path: (one.shape, one.dtype, one.axes) for path, one in specs.items()}
    return _known[text]


def _size(arrays: _Arrays) -> int:
    return sum(math.prod(shape) for shape, _, _ in arrays.values())


def _trials(experiment: str, feature: str) -> tuple[Mapping[str, Any], ...]:
    trials = features()[feature].trials if feature else ({},)
    return trials if experiment == _PLAIN else trials[:1]


def _tiny_trainer(experiment: str, feature: str, trial: Mapping[str, Any] | None = None) -> Any:
    from dovetail.parallel import MeshLayout

    config = experiments()[experiment].tiny()
    if feature:
        wanted = features()[feature]
        config = wanted.apply(config, **(wanted.trial if trial is None else trial))
    mesh = MeshLayout.Config(data=-1, fsdp=1)
    return config.set(steps=TRAINED_STEPS, writers={}, evaluators={}, mesh=mesh).build()


def _model_text(trainer: Any) -> str:
    return to_text(trainer.model.config)


@functools.lru_cache(maxsize=4)
def _plain_model_text(experiment: str) -> str:
    return _model_text(_tiny_trainer(experiment, ""))


def _train(trainer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains, and returns the parameters and variables of the checkpoint that training left."""
    params, variables = _structs(trainer)
    with tempfile.TemporaryDirectory() as folder:
        outcome = trainer.train(Path(folder))
        losses = [loss for _, loss in outcome.losses]
        if outcome.step != TRAINED_STEPS or not all(map(math.isfinite, losses)):
            raise FloatingPointError(f"after {outcome.step} steps the losses are {losses}")
        _, arrays = trainer.checkpointer.restore_parameters(params | variables)
    return {path: arrays[path] for path in params}, {path: arrays[path] for path in variables}


def _structs(trainer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the shapes and types of parameters and variables."""
    from dovetail.module import parameter_specs, variable_specs

    params, variables = parameter_specs(trainer.model), variable_specs(trainer.model)
    return (
        {path: spec.struct() for path, spec in params.items()},
        {path: spec.struct() for path, spec in variables.items()},
    )


def _generate(trainer: Any, params: dict[str, Any], variables: dict[str, Any]) -> None:
    from dovetail.generate import Generator

    generator = Generator(trainer.model.config, params, variables=variables, length=_HELD)
    generator.generate([[1, 2, 3]], max_new_tokens=3)


def _failed(experiment: str, feature: str, stage: str, error: Exception) -> Pair:
    lines = str(error).strip().splitlines() or [""]
    return Pair(experiment, feature, "fails", f"{type(error).__name__}: {lines[0]}", stage)
