"""Modules under jaxtyping's import hook, as the subpackages above this one may be."""

import importlib
import sys
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import pytest

from dovetail.module import functional, initialize_variables
from tests.module.example_modules import KEY, weights

SOURCE = '''
from __future__ import annotations
import jax
from jaxtyping import Array, Float
from dovetail.config import ConfigOf
from dovetail.module import Module, Shared, parameter, repeated, scan, variable

class Layer(Module):
    """Checked."""

    class Config(Module.Config["Layer"]):
        width: int = 4

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.weight = parameter((config.width, config.width), ("embed", "mlp"))
        self.calls = variable((), ())

    def __call__(self, x_BE: Float[Array, "B E"]) -> Float[Array, "B E"]:
        self.calls = self.calls + 1
        return x_BE @ self.weight

class Stack(Module):
    """Checked."""

    class Config(Module.Config["Stack"]):
        layer: ConfigOf[Module] = Layer.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer: Module = repeated(config.layer.build(), 2)
        self.again = Shared.Config(path="first").build()
        self.first = config.layer.build()

    def __call__(self, x_BE: Float[Array, "B E"]) -> Float[Array, "B E"]:
        x_BE = scan(self.layer, lambda x, _: (self.layer(x), None), x_BE)[0]
        return self.again(self.first(x_BE))
'''


def test_checked_modules_run_and_catch_a_wrong_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_modules.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("checked_modules", "beartype.beartype"):
        checked = importlib.import_module("checked_modules")
    monkeypatch.delitem(sys.modules, "checked_modules")
    model = checked.Stack.Config().build()
    params, variables = weights(model), initialize_variables(model, KEY)
    result, outputs = functional(model, params, jnp.ones((3, 4)), variables=variables)
    assert result.shape == (3, 4)
    assert (outputs.variables or {})["first/calls"] == 2
    with pytest.raises(jaxtyping.TypeCheckError):
        functional(model, params, jnp.ones((3, 4, 1)), variables=variables)
