"""Batches of a user's own input are compared with its spec, before they are put on devices."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.experiments import find_experiment
from dovetail.module import ArraySpec
from dovetail.trainer.feed import device_batch

SPEC = {
    "image": ArraySpec((4, 3), "float32", ("batch", None)),
    "label": ArraySpec((4,), "int32", ("batch",)),
}


class Images:
    """Returns what it is given."""

    def __init__(self, batch: Any) -> None:
        self.returned = batch

    def batch(self, step: int, rows: slice | None = None) -> Any:
        return self.returned


def placed(batch: Any) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return device_batch(Images(batch), 0, {"image": sharding, "label": sharding}, SPEC)


def test_a_batch_that_is_as_its_spec_says() -> None:
    found = placed({"image": np.ones((4, 3), np.float32), "label": np.arange(4)})
    assert found["image"].shape == (4, 3)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, r"Images\.batch: expected a dict .* got NoneType\. Does it end with `return`\?"),
        ({"image": np.ones((4, 3))}, r"with the same fields as Images\.spec\(\) returns, got dict"),
        (
            {"image": np.ones((4, 5)), "label": np.arange(4)},
            r"\['image'\] has the shape \(4, 5\), expected \(4, 3\): rows 0 to 4",
        ),
        ({"image": np.ones((4, 3)), "label": np.arange(3)}, r"\['label'\] has the shape \(3,\)"),
        (
            {"image": np.ones((4, 3), np.uint8), "label": np.arange(4)},
            r"\['image'\] has the dtype uint8, expected float32 as Images\.spec\(\) says",
        ),
    ],
)
def test_a_batch_that_is_not(batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        placed(batch)


@dataclass
class Unregistered:
    """A dataclass that JAX does not know."""

    image: Any


def test_a_batch_that_is_no_pytree(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = find_experiment("tiny-lm").tiny().build()
    monkeypatch.setattr(trainer.input, "spec", lambda: Unregistered(SPEC["image"]))
    with pytest.raises(ConfigError, match=r"a Unregistered, expected an ArraySpec"):
        trainer.program()


def test_a_misspelt_axis_of_a_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be replicated over all devices."""
    trainer = find_experiment("tiny-lm").tiny().build()
    wrong = ArraySpec((8, 4), "int32", ("btach", "sequence"))
    monkeypatch.setattr(trainer.input, "spec", lambda: {"tokens": wrong})
    with pytest.raises(ConfigError, match=r"input\.spec\(\).*'btach'.*Did you mean 'batch'"):
        trainer.program()
