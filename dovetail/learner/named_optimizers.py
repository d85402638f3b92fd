"""Optimizers by the names that people know them by.

What has no part of its own is a transformation of Optax: as it is where it treats every number by
itself, tensor by tensor where it looks at whole ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optax
import optax.contrib

from dovetail.config import ConfigError, ConfigOf, config_for, did_you_mean
from dovetail.learner.muon import Muon
from dovetail.learner.optimizer import Elementwise, Optimizer, PerTensor, chain
from dovetail.learner.optimizers import Adafactor, AdamW, Lion, Sgd


def optimizer_names() -> list[str]:
    """Returns the names of all optimizers."""
    return sorted(_OPTIMIZERS)


def named_optimizer(name: str) -> ConfigOf[Optimizer]:
    """Returns the config of an optimizer, with what its authors advise."""
    if name not in _OPTIMIZERS:
        known = ", ".join(_OPTIMIZERS)
        advice = did_you_mean(name, _OPTIMIZERS)
        raise ConfigError(f"There is no optimizer {name!r}. {advice} Known: {known}.")
    found: ConfigOf[Optimizer] = _OPTIMIZERS[name]()
    return found


def _each_number(transform: Any, **values: Any) -> Callable[[], Any]:
    return lambda: Elementwise.Config(transform=config_for(transform, **values))


def _each_tensor(*transforms: Any) -> Callable[[], Any]:
    def make() -> Any:
        configs = [config_for(transform) for transform in transforms]
        joined = config_for(chain, transforms=configs) if len(configs) > 1 else configs[0]
        return PerTensor.Config(transform=joined)

    return make


_OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "adabelief": _each_number(optax.scale_by_belief),
    "adadelta": _each_number(optax.scale_by_adadelta),
    "adafactor": Adafactor.Config,
    "adagrad": _each_number(optax.scale_by_rss),
    "adamax": _each_number(optax.scale_by_adamax),
    "adamw": AdamW.Config,
    "adan": _each_number(optax.scale_by_adan),
    "ademamix": _each_number(optax.contrib.scale_by_ademamix),
    "adopt": _each_number(optax.contrib.scale_by_adopt),
    "amsgrad": _each_number(optax.scale_by_amsgrad),
    "lamb": _each_tensor(optax.scale_by_adam, optax.scale_by_trust_ratio),
    "lion": Lion.Config,
    "muon": Muon.Config,
    "nadamw": _each_number(optax.scale_by_adam, nesterov=True),
    "novograd": _each_tensor(optax.scale_by_novograd),
    "radam": _each_number(optax.scale_by_radam),
    "rmsprop": _each_number(optax.scale_by_rms),
    "sgd": Sgd.Config,
    "sign-sgd": _each_number(optax.scale_by_sign),
    "sm3": _each_tensor(optax.scale_by_sm3),
    "yogi": _each_number(optax.scale_by_yogi),
}
