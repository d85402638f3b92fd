"""Every parallelism and mixtures of them, against one device: the same losses and gradients.

All at the same microbatches, in float32, for several steps. `make slow` runs the whole table.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.parallel.steps import MODELS, OF_CHANGES, TOLERANCE, assert_same, on_one_device, train
from tests.parallel.table import rows

# One for each model in the default tests.
QUICK = {
    ("tiny-lm", "fsdp x context x tensor"),
    ("tiny-lm", "fsdp x ring x tensor"),
    ("mixtral-8x7b", "experts x fsdp"),
    ("tiny-hybrid", "data x fsdp x tensor"),
    ("deepseek-v3", "fsdp x tensor"),
}


def cases() -> list[Any]:
    found = []
    for model in MODELS:
        for name, how in rows(model).items():
            marks = () if (model, name) in QUICK else (pytest.mark.sweep,)
            found.append(pytest.param(model, how, id=f"{model}: {name}", marks=marks))
    return found


@pytest.mark.parametrize(("model", "how"), cases())
def test_it_trains_as_one_device_does(model: str, how: dict[str, Any]) -> None:
    expected = on_one_device(model, how["gradients"].microbatches)
    assert_same(train(model, **how), expected, OF_CHANGES.get(model, TOLERANCE))
