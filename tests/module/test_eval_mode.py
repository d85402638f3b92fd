"""run_in_eval_mode(): a frozen child inside a trained model has no effects."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.module import ConstantInitializer, Module, functional, run_in_eval_mode, variable


class Talkative(Module):
    """Leaves everything behind that a module can, and says whether it is trained."""

    def __init__(self, config: Talkative.Config) -> None:
        super().__init__(config)
        self.seen = variable((), (), ConstantInitializer.Config())

    def __call__(self, x: jax.Array) -> Any:
        self.add_loss("loss", x.sum(), 1.0)
        self.add_summary("mean", x.mean())
        self.add_output("x", x)
        self.write_cache("x", x)
        self.seen = self.seen + 1
        return x * (2 if self.training else 3)


class Asking(Module):
    """Has one child that it asks, and one that it runs."""

    def __init__(self, config: Asking.Config) -> None:
        super().__init__(config)
        self.asked, self.run = Talkative.Config().build(), Talkative.Config().build()

    def __call__(self, x: jax.Array) -> Any:
        return run_in_eval_mode(self.asked, x), self.run(x)


def test_only_the_result_comes_back() -> None:
    variables = {"asked/seen": jnp.zeros(()), "run/seen": jnp.zeros(())}
    (asked, run), outputs = functional(
        Asking.Config().build(),
        {},
        jnp.ones(2),
        variables=variables,
        training=True,
        losses="return",
    )
    assert (asked.tolist(), run.tolist()) == ([3, 3], [2, 2])
    assert outputs.losses.keys() == {"run/loss"}
    assert outputs.summaries.keys() == {"run/mean"}
    assert outputs.outputs.keys() == outputs.cache.keys() == {"run/x"}
    assert {path: float(value) for path, value in outputs.variables.items()} == {
        "asked/seen": 0,
        "run/seen": 1,
    }
