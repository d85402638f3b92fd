"""The op registry: order, refusals, warnings, strictness, preference, platforms and threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import jax
import pytest

from dovetail.config import ConfigError
from dovetail.kernels import (
    Op,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    current_platform,
    forget_choices,
    prefer,
    references,
    strict,
    target_platform,
)
from dovetail.kernels.registry import _ops, current_device
from dovetail.parallel import AxisRules, MeshLayout, Placement, placed


@pytest.fixture
def op() -> Iterator[Op]:
    """An op with a TPU kernel, one that needs even numbers, and a slow one for everything."""
    made = Op("doubling")

    @made.register("plain", slow=lambda number: number > 1000)
    def plain(number: int) -> str:
        return f"plain {2 * number}"

    @made.register("even", supports=lambda n: f"{n} is odd" if n % 2 else None, before="plain")
    def even(number: int) -> str:
        return f"even {2 * number}"

    @made.register("matrix", platforms=("tpu",), before="even")
    def matrix(number: int) -> str:
        return f"matrix {2 * number}"

    forget_choices()
    yield made
    forget_choices()
    del _ops["doubling"]


def test_the_first_that_supports_the_call_runs(op: Op) -> None:
    assert [one.name for one in op.implementations] == ["matrix", "even", "plain"]
    assert op(4) == "even 8"
    assert op(3) == "plain 6"
    with target_platform("tpu"):
        assert op(3) == "matrix 6"
        assert current_platform() == "tpu"
    assert current_platform() == "cpu"


def test_choices_are_recorded_once_each_with_the_reasons(op: Op) -> None:
    op(4)
    op(6)
    op(3)
    with target_platform("tpu"):
        op(5)
    assert choices() == [
        "doubling: even (cpu)",
        "doubling: plain (cpu; not even, because 3 is odd)",
        "doubling: matrix (tpu)",
    ]
    forget_choices()
    assert choices() == []


def test_a_slow_choice_warns_once_and_loudly(op: Op) -> None:
    with pytest.warns(SlowKernelWarning, match=r"doubling: the slow 'plain' .* cpu.*1001 is odd"):
        op(1001)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op(1003)
        op(3)
    forget_choices()
    with pytest.warns(SlowKernelWarning):
        op(1001)


def test_strict_makes_a_slow_choice_an_error(op: Op) -> None:
    with strict():
        with pytest.raises(SlowKernelError, match=r"doubling: the slow 'plain' .*strict\(\)"):
            op(1001)
        assert op(1000) == "even 2000"
        assert op(3) == "plain 6"
        with strict(False), pytest.warns(SlowKernelWarning):
            op(1001)


def test_preference_forces_an_implementation_and_is_recorded_as_such(op: Op) -> None:
    with prefer(doubling="plain"):
        assert op(4) == "plain 8"
        with prefer(doubling="even"):
            assert op(4) == "even 8"
        assert op(4) == "plain 8"
    assert choices() == ["doubling: plain (cpu, preferred)", "doubling: even (cpu, preferred)"]
    assert op(4) == "even 8"


def test_a_slow_one_that_was_asked_for_by_name_is_no_matter(op: Op) -> None:
    with prefer(doubling="plain"), strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(1001) == "plain 2002"
    assert choices() == ["doubling: plain (cpu, preferred)"]


def test_what_is_computed_for_a_figure_is_not_recorded(op: Op) -> None:
    op.register("reference")(lambda number: f"reference {2 * number}")
    with references():
        assert op(4) == "reference 8"
    assert choices() == []


def test_a_preferred_implementation_says_why_it_cannot(op: Op) -> None:
    with prefer(doubling="even"), pytest.raises(ValueError, match=r"doubling='even'.*: 3 is odd"):
        op(3)
    with prefer(doubling="matrix"), pytest.raises(ValueError, match="it runs on tpu only"):
        op(3)


@pytest.mark.usefixtures("op")
def test_unknown_names_are_refused_at_once() -> None:
    with (
        pytest.raises(ConfigError, match=r"no op 'dubling'. Did you mean 'doubling'"),
        prefer(dubling="plain"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"doubling: .* no implementation 'odd'.* even"),
        prefer(doubling="odd"),
    ):
        pass


def test_no_implementation_at_all_is_an_error_with_every_reason() -> None:
    op = Op("nothing")
    op.register("tpu_only", platforms=("tpu",))(lambda: None)
    try:
        with pytest.raises(
            ValueError, match=r"nothing: no implementation .* cpu. Not tpu_only, bec"
        ):
            op()
    finally:
        del _ops["nothing"]


def test_a_place_before_an_unknown_implementation_is_refused(op: Op) -> None:
    add = op.register("other", before="evn")
    with pytest.raises(ValueError, match=r"no implementation 'evn'. Did you mean 'even'"):
        add(lambda number: "other")


def test_registering_a_name_again_replaces_it(op: Op) -> None:
    op.register("even", before="plain")(lambda number: "new")
    assert [one.name for one in op.implementations] == ["matrix", "even", "plain"]
    assert op(3) == "new"


def test_a_compiled_function_follows_the_settings(op: Op) -> None:
    chosen: list[str] = []

    @jax.jit
    def compiled(x: jax.Array) -> jax.Array:
        chosen.append(op(4))
        return x

    for _ in range(2):
        compiled(1.0)
        with prefer(doubling="plain"):
            compiled(1.0)
        with target_platform("tpu"):
            compiled(1.0)
    assert chosen == ["even 8", "plain 8", "matrix 8"], "each setting is traced once"


def test_settings_of_one_thread_do_not_reach_another(op: Op) -> None:
    results: list[str] = []
    with prefer(doubling="plain"), target_platform("tpu"), strict():
        thread = threading.Thread(target=lambda: results.append(f"{current_platform()} {op(4)}"))
        thread.start()
        thread.join()
        assert op(4) == "plain 8"
    assert results == ["cpu even 8"]


def test_a_device_is_known_where_there_is_one() -> None:
    layout = MeshLayout.Config(fsdp=8).build()
    here, nowhere = layout.mesh(jax.devices()), layout.abstract(8)
    rules = AxisRules.Config().build()
    assert current_device() == jax.devices()[0]
    with placed(Placement(here, rules)):
        assert current_device() == jax.devices()[0]
    with placed(Placement(nowhere, rules)), target_platform("gpu"):
        assert current_device() is None
    with target_platform("gpu"):
        assert current_device() is None, "that of another platform"
