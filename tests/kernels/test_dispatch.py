"""The dispatch of ops: order, refusals, warnings, strictness, preference, platforms and threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import jax
import pytest

from dovetail.config import ConfigError
from dovetail.kernels import (
    Implementation,
    Op,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    current_platform,
    implementation,
    prefer,
    reference_only,
    strict,
    target_platform,
)
from dovetail.kernels.dispatch import _ops, current_device
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement


@pytest.fixture
def op() -> Iterator[Op]:
    """An op with a TPU kernel, one that needs even numbers, and a slow one for everything."""

    @implementation("plain", slow=lambda number: number > 1000)
    def plain(number: int) -> str:
        return f"plain {2 * number}"

    @implementation("even", supports=lambda n: f"{n} is odd" if n % 2 else None)
    def even(number: int) -> str:
        return f"even {2 * number}"

    @implementation("matrix", platforms=("tpu",))
    def matrix(number: int) -> str:
        return f"matrix {2 * number}"

    clear_choices()
    yield Op("doubling", (matrix, even, plain))
    clear_choices()
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
    clear_choices()
    assert choices() == []


def test_a_slow_choice_warns_once_and_loudly(op: Op) -> None:
    with pytest.warns(SlowKernelWarning, match=r"doubling: the slow 'plain' .* cpu.*1001 is odd"):
        op(1001)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op(1003)
        op(3)
    clear_choices()
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


def test_a_slow_one_that_is_preferred_does_not_warn(op: Op) -> None:
    with prefer(doubling="plain"), strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(1001) == "plain 2002"
    assert choices() == ["doubling: plain (cpu, preferred)"]


def test_reference_only_records_no_choice(op: Op) -> None:
    plain = Implementation("reference", lambda number: f"reference {2 * number}")
    op.implementations = (*op.implementations, plain)
    with reference_only():
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
    op = Op("nothing", (Implementation("tpu_only", lambda: None, platforms=("tpu",)),))
    try:
        with pytest.raises(
            ValueError, match=r"nothing: no implementation .* cpu. Not tpu_only, bec"
        ):
            op()
    finally:
        del _ops["nothing"]


def test_an_implementation_can_be_added_in_front(op: Op) -> None:
    op.implementations = (Implementation("new", lambda number: "new"), *op.implementations)
    assert op(3) == "new"
    assert choices() == ["doubling: new (cpu)"]


def test_the_order_of_trial_of_every_op() -> None:
    assert {name: [one.name for one in op.implementations] for name, op in _ops.items()} == {
        "attention": [
            "splash",
            "cudnn",
            "mosaic",
            "triton",
            "ulysses",
            "ring",
            "blockwise",
            "reference",
        ],
        "decode_attention": ["reference"],
        "attention_chunk": ["pallas", "triton", "reference"],
        "grouped_matmul": ["blocked", "megablox", "triton", "reference"],
        "all_to_all": ["ragged", "reference"],
        "cross_entropy": ["chunked", "reference"],
    }


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
    here, nowhere = layout.mesh(jax.devices()), layout.abstract_mesh(8)
    rules = AxisRules.Config().build()
    assert current_device() == jax.devices()[0]
    with use_placement(Placement(here, rules)):
        assert current_device() == jax.devices()[0]
    with use_placement(Placement(nowhere, rules)), target_platform("gpu"):
        assert current_device() is None
    with target_platform("gpu"):
        assert current_device() is None, "that of another platform"
