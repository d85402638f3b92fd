"""Models that run at the same time do not see each other."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import Module, functional, parameter, repeated, scan
from tests.module.example_modules import KEY, X_BE, Host, Noise, Sequence

MEETING = threading.Barrier(2, timeout=60)


class Meets(Module):
    """Waits for the other thread between reading, drawing and adding."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.scale = parameter((), ())

    def __call__(self, x: Any) -> Any:
        MEETING.wait()
        y = x * self.scale
        MEETING.wait()
        self.add_loss("sum", y.sum(), 1)
        self.add_output("noise", jax.random.uniform(self.random_key()))
        MEETING.wait()
        self.write_cache("y", y)
        return y


class Nested(Module):
    """A stack of them, so that the traces are nested while the threads meet."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.layer = repeated(Meets.Config().build(), 2)

    def __call__(self, x: Any) -> Any:
        return scan(self.layer, lambda x, _: (self.layer(x), None), x)[0]


def test_two_threads_trace_different_models_in_step() -> None:
    def run(scale: float) -> Any:
        model = Nested.Config().build()
        params, key = {"layer/scale": jnp.full(2, scale)}, jax.random.key(int(scale))
        step = jax.jit(lambda params: functional(model, params, X_BE, key=key, losses="return"))
        return step(params)

    with ThreadPoolExecutor(2) as pool:
        (first, first_out), (second, second_out) = pool.map(run, [2.0, 3.0])
    np.testing.assert_allclose(first, X_BE * 4, rtol=1e-6)
    np.testing.assert_allclose(second, X_BE * 9, rtol=1e-6)
    np.testing.assert_allclose(first_out.losses["layer/sum"].total, 6 * X_BE.sum(), rtol=1e-5)
    np.testing.assert_allclose(second_out.losses["layer/sum"].total, 12 * X_BE.sum(), rtol=1e-5)
    noises = np.concatenate([o.outputs["layer/noise"] for o in (first_out, second_out)])
    assert len(np.unique(noises)) == 4
    for outputs, scale in ((first_out, 2.0), (second_out, 3.0)):
        np.testing.assert_allclose(outputs.cache["layer/y"][0], X_BE * scale, rtol=1e-6)


def test_one_model_may_run_in_two_threads() -> None:
    model = Meets.Config().build()

    def run(scale: float) -> Any:
        return functional(model, {"scale": scale}, X_BE, key=KEY, losses="discard")[0]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, [2.0, 3.0])
    np.testing.assert_allclose(first * 3, second * 2, rtol=1e-6)


def test_a_new_thread_inherits_nothing() -> None:
    def how(model: Host, x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(model.random_key).exception()

    error, _ = functional(Host.Config().build(), {}, (how, X_BE), key=KEY)
    assert isinstance(error, RuntimeError)


def test_tasks_that_take_turns_do_not_mix() -> None:
    model = Sequence.Config(parts={"a": Noise.Config()}).build()

    async def draw(seed: int) -> list[Any]:
        found = []
        for _ in range(3):
            result, _ = functional(model, {}, X_BE, key=jax.random.key(seed))
            found.append(np.asarray(result))
            await asyncio.sleep(0)
        return found

    async def both() -> Any:
        return await asyncio.gather(draw(1), draw(2))

    first, second = asyncio.run(both())
    assert all(np.array_equal(first[0], other) for other in first)
    assert all(np.array_equal(second[0], other) for other in second)
    assert not np.array_equal(first[0], second[0])


class Steps(Module):
    """A method that yields: each step is its own, what lies between is the caller's."""

    def __call__(self, x: Any) -> Iterator[Any]:
        for number in range(2):
            self.add_output(f"step{number}", x)
            yield x + number


def test_a_generator_method_runs_in_its_own_frame_step_by_step() -> None:
    def how(model: Host, x: Any) -> Any:
        found = []
        for number, value in enumerate(model.one(x)):
            model.add_output(f"between{number}", value)
            found.append(value)
        return found

    model = Host.Config(child=Steps.Config()).build()
    found, outputs = functional(model, {}, (how, jnp.zeros(())))
    assert [float(value) for value in found] == [0, 1]
    assert set(outputs.outputs) == {"one/step0", "between0", "one/step1", "between1"}


def test_an_error_leaves_no_frame_behind() -> None:
    def how(model: Host, x: Any) -> Any:
        raise KeyError("planted")

    model = Host.Config().build()
    with pytest.raises(KeyError):
        functional(model, {}, (how, X_BE))
    with pytest.raises(RuntimeError, match="works only while the model runs"):
        model.random_key()
