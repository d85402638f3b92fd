"""Activation rematerialization and host offload, of activations and optimizer state."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature

_REMAT_TRIAL = ("attention_output", "feed_forward_gate")
_OFFLOADED = ("layer_input", "attention_output")


@feature(
    "remat",
    files=("parallel/remat.py:named_remat",),
    needs={"dovetail.layers:Stack": "there is no stack of layers to rematerialize"},
    trials=(
        *({"save": (name,)} for name in ("nothing", "dots", "attention", "everything")),
        {"save": _REMAT_TRIAL},
    ),
)
def remat(config: Any, save: tuple[str, ...] = ("nothing",)) -> Any:
    """Rematerialization: saves nothing, dots, attention, everything or tagged activations."""
    from dovetail.layers import Stack
    from dovetail.parallel.remat import named_remat

    return select(config, Stack).set(remat=named_remat(save))


@feature(
    "offload",
    needs={"dovetail.layers:Stack": "there is no stack of layers to offload"},
    trials=({}, {"names": ("layer_input",), "save": ("attention_output",)}),
)
def offload(config: Any, names: tuple[str, ...] = _OFFLOADED, save: tuple[str, ...] = ()) -> Any:
    """Activation offload: moves tagged activations to host memory; saves others on device."""
    from dovetail.layers import Stack
    from dovetail.parallel import OffloadNamed

    return select(config, Stack).set(remat=OffloadNamed.Config(names=names, save=save))


@feature("offload-optimizer")
def offload_optimizer(config: Any) -> Any:
    """Optimizer offload: keeps the optimizer state in host memory."""
    from dovetail.parallel import HostMemory

    config.learner.optimizer_memory = HostMemory.Config()
    return config
