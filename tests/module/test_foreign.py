"""Inside JAX's own transformations a module may read, but not write: the write would be lost."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.module import checkpoint, functional, initialize_variables
from tests.module.example_modules import KEY, X_BE, Counter, Host, weights

MODEL = Host.Config(child=Counter.Config()).build()
PARAMS, VARIABLES = weights(MODEL), initialize_variables(MODEL, KEY)

FOREIGN = {
    "scan": lambda body, x: jax.lax.scan(lambda c, _: (body(c), None), x, None, length=2),
    "while": lambda body, x: jax.lax.fori_loop(0, 2, lambda _, c: body(c), x),
    "vmap": lambda body, x: jax.vmap(body)(x),
    "jit": lambda body, x: jax.jit(body)(x),
    "grad": lambda body, x: jax.grad(lambda x: body(x).sum())(x),
    "checkpoint": lambda body, x: jax.checkpoint(body)(x),
    "cond": lambda body, x: jax.lax.cond(x.sum() > 0, body, body, x),
}

WRITES = {
    "add_loss": lambda model, x: model.add_loss("l", x.sum(), 1),
    "add_summary": lambda model, x: model.add_summary("s", x.sum()),
    "add_output": lambda model, x: model.add_output("o", x),
    "write_cache": lambda model, x: model.write_cache("c", x),
    "variable": lambda model, x: setattr(model.one, "calls", 1),
}


def run(body: Any, foreign: str) -> Any:
    def how(model: Any, x: Any) -> Any:
        return FOREIGN[foreign](lambda x: body(model, x), x)

    return functional(MODEL, PARAMS, (how, X_BE), variables=VARIABLES, losses="return")


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_raises_and_names_the_wrapper(foreign: str, write: str) -> None:
    def body(model: Any, x: Any) -> Any:
        WRITES[write](model, x)
        return x

    with pytest.raises(RuntimeError, match=r"Use the one of the same name from dovetail\.module"):
        run(body, foreign)


def test_the_message_names_what_and_where() -> None:
    def body(model: Any, x: Any) -> Any:
        return model.one(x)

    with pytest.raises(RuntimeError, match="Assigning the variable 'one/calls' inside a plain jax"):
        run(body, "scan")


@pytest.mark.parametrize("foreign", FOREIGN)
def test_reading_is_fine(foreign: str) -> None:
    run(lambda model, x: x * model.one.scale, foreign)


def test_our_wrapper_inside_a_foreign_one_cannot_let_its_outputs_out() -> None:
    def body(model: Any, x: Any) -> Any:
        return checkpoint(lambda x: model.add_loss("l", x.sum(), 1) or x)(x)

    with pytest.raises(RuntimeError, match=r"\['l'\].*inside a plain jax transformation"):
        run(body, "scan")


def test_functional_inside_any_transformation_is_a_model_of_its_own() -> None:
    def total(x: Any) -> Any:
        how = lambda model, x: model.add_loss("l", x.sum(), 1) or x  # noqa: E731
        _, outputs = functional(MODEL, PARAMS, (how, x), losses="return")
        return outputs.losses["l"].total

    assert jnp.allclose(jax.jit(jax.vmap(jax.grad(total)))(X_BE), 1.0)
