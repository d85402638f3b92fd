"""Dovetail trains large models, from strictly encapsulated components.

    import dovetail

    run = dovetail.experiment("tiny-lm").train(steps=200)
    print(run.generate("def main(", max_new_tokens=64).text)

Importing it is cheap: JAX is imported at first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.api import Experiment, experiment, import_hf, load
    from dovetail.config import Error
    from dovetail.run import Interrupted, Run

__all__ = ["Error", "Experiment", "Interrupted", "Run", "experiment", "import_hf", "load"]

_LAZY = {
    "Error": "dovetail.config",
    "Experiment": "dovetail.api",
    "Interrupted": "dovetail.run",
    "Run": "dovetail.run",
    "experiment": "dovetail.api",
    "import_hf": "dovetail.api",
    "load": "dovetail.api",
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
