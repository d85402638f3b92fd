"""BoundModule: a module with its parameters, called like a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from dovetail.config import ConfigError, Error
from dovetail.module.functional import functional
from dovetail.module.module import Module


class BoundModule:
    """A module with its parameters: call it, or one of its methods, like a function.

    model = BoundModule(module, params)
    logits = model(tokens)  # the method `predict` of the module, or else `__call__`
    x = model.embed(batch)  # any other method of the module, by name

    Losses that the module adds are dropped, and so is its new state. For both, use `functional`.
    """

    def __init__(
        self,
        module: Module,
        params: Mapping[str, Any],
        variables: Mapping[str, Any] | None = None,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Stores the arguments; compiles nothing yet.

        Args:
            module: the module.
            params: its parameters by path.
            variables: its variables by path.
            context: entered for every call, such as a placement on a mesh.
        """
        self._context = context
        self.module, self.params, self.variables = module, params, dict(variables or {})
        self._compiled: dict[str, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Runs `predict`, or `__call__` of a module that has none."""
        return self._method("predict" if hasattr(self.module, "predict") else "__call__")(*args)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Returns a method of the module, bound to the parameters."""
        if name.startswith("_") or not callable(getattr(type(self.module), name, None)):
            raise AttributeError(f"{type(self.module).__name__} has no method {name!r}.")
        return self._method(name)

    def _method(self, name: str) -> Callable[..., Any]:
        if name not in self._compiled:

            @jax.jit
            def run(params: Any, variables: Any, args: tuple[Any, ...]) -> Any:
                options: dict[str, Any] = {"losses": "discard", "method": name}
                return functional(self.module, params, args, variables=variables, **options)[0]

            self._compiled[name] = run
        return lambda *args: self._call(name, args)

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        try:
            with self._context():
                return self._compiled[name](self.params, self.variables, args)
        except Error:
            raise
        except (TypeError, ValueError, IndexError) as error:  # about shapes and types
            kind = type(self.module).__name__
            message = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(
                f"{kind}.{name}: cannot be called with {_described(args)}: {message}"
            ) from error


def _described(args: tuple[Any, ...]) -> str:
    """Returns the dtypes and shapes of arguments, as JAX writes them."""
    leaves = [leaf for leaf in jax.tree.leaves(args) if hasattr(leaf, "shape")]
    shapes = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves]
    return ", ".join(shapes) or ", ".join(type(each).__name__ for each in args) or "nothing"
