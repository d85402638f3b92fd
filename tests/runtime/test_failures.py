"""Failures of the machine are explained: what failed, and what to do."""

import errno
import os

import pytest

from dovetail.config import ConfigError, Error
from dovetail.runtime import BadPathError, Failure, explain_failure, explained_failures


class JaxRuntimeError(RuntimeError):
    """Named as JAX's own."""


SMALLER = "Try a smaller input.batch_size, --with remat, or `dovetail plan`."
UNSET = (
    "JAX_PLATFORMS is 'tpu': is that device here, and its plugin installed? Unset JAX_PLATFORMS to "
    "use what there is."
)
EXPLAINED = {
    "a bad path": (
        OSError(errno.EACCES, os.strerror(errno.EACCES), "runs/mine"),
        "runs/mine: Permission denied. Choose another path.",
    ),
    "out of device memory": (
        JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
        f"out of memory: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes. {SMALLER}",
    ),
    "out of host memory": (
        MemoryError(),
        f"out of memory: MemoryError. {SMALLER}",
    ),
    "a lost peer": (
        JaxRuntimeError("UNKNOWN: Gloo AllGather failed: closed"),
        "lost another process of this run: UNKNOWN: Gloo AllGather failed: closed.",
    ),
    "no device": (
        RuntimeError("Unable to initialize backend 'tpu': none found."),
        f"JAX cannot use its devices: Unable to initialize backend 'tpu': none found. {UNSET}",
    ),
}


@pytest.mark.parametrize(("error", "message"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_failure_of_the_machine_is_explained(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(Failure) as caught, explained_failures():
        raise error
    assert str(caught.value) == message
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ConfigError) == isinstance(error, OSError)


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        RuntimeError("Gloo failed, said somebody else"),
        AssertionError("of a component"),
        OSError(errno.ENOSPC, "No space left on device", "runs/mine"),
        OSError(errno.EACCES, "Permission denied"),  # a port, for example
        Error("RESOURCE_EXHAUSTED is in the text of an error that explains itself"),
        BadPathError("explained already"),
    ],
    ids=repr,
)
def test_any_other_failure_stays_as_it_is(error: Exception) -> None:
    assert explain_failure(error) is None
    with pytest.raises(type(error)) as caught, explained_failures():
        raise error
    assert caught.value is error
