"""The shapes of the schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Component, ConfigError, from_text, to_text
from dovetail.learner import (
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    WarmupStableDecaySchedule,
)
from dovetail.learner.schedules import DecaySchedule, WarmupSchedule


def every_schedule() -> list[type[Component]]:
    """Every schedule of the subpackage: a new one is tested by being defined."""
    found, waiting = [], [WarmupSchedule]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind not in (WarmupSchedule, DecaySchedule) and kind.__module__.startswith("dovetail."):
            found.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def rates(schedule, steps: int = 101) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(steps)))


def make(kind, **values):
    ends = {"total_steps": 100} if "total_steps" in kind.Config.fields() else {}
    return kind.Config(**(ends | values)).build()


@pytest.mark.parametrize("kind", every_schedule(), ids=lambda kind: kind.__name__)
def test_every_schedule_warms_up_linearly_and_never_stands_still(kind) -> None:
    assert len(every_schedule()) >= 4
    values = rates(make(kind, peak=0.5, warmup_steps=9))
    np.testing.assert_allclose(values[:10], 0.05 * np.arange(1, 11), rtol=1e-6)
    assert values.max() == pytest.approx(0.5)
    assert (values[:100] > 0).all()
    assert (np.diff(values[9:]) <= 1e-9).all()  # only downwards after the peak
    assert rates(make(kind, peak=0.5))[0] == pytest.approx(0.5)  # no warmup: at once
    config = kind.Config(peak=0.25)
    assert from_text(to_text(config)) == config


def test_constant() -> None:
    np.testing.assert_allclose(rates(make(ConstantSchedule, peak=0.1)), 0.1)


def test_cosine_ends_at_its_fraction_and_stays_there() -> None:
    values = rates(make(CosineSchedule, peak=1.0, end_fraction=0.2, warmup_steps=20), 150)
    assert values[20] == pytest.approx(1.0)
    assert values[60] == pytest.approx(0.6)  # halfway
    assert values[40] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + np.cos(np.pi / 4)))
    np.testing.assert_allclose(values[100:], 0.2, rtol=1e-5)


def test_warmup_stable_decay_decays_only_at_the_end() -> None:
    values = rates(make(WarmupStableDecaySchedule, peak=1.0, warmup_steps=10, decay_fraction=0.25))
    np.testing.assert_allclose(values[10:76], 1.0)
    np.testing.assert_allclose(values[75:], 1 - np.arange(26) / 25, atol=1e-6)


def test_inverse_square_root() -> None:
    values = rates(make(InverseSquareRootSchedule, peak=1.0, warmup_steps=3))
    np.testing.assert_allclose(values[3:], np.sqrt(4 / np.arange(4, 102)), rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CosineSchedule.Config(), r"^total_steps: not set, so the decay of CosineSchedule"),
        (
            CosineSchedule.Config(total_steps=5, warmup_steps=5),
            "^warmup_steps: a warmup of 5 steps is not shorter than total_steps=5",
        ),
        (
            CosineSchedule.Config(total_steps=1, warmup_steps=1),
            "a warmup of 1 step is not shorter",
        ),
        (ConstantSchedule.Config(warmup_steps=-1), "^warmup_steps: expected 0 or more, got -1"),
        (
            WarmupStableDecaySchedule.Config(total_steps=5, decay_fraction=2.0),
            "^decay_fraction: expected 0 to 1, got 2.0",
        ),
    ],
)
def test_impossible_schedules_are_refused(config, message) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build()


def test_a_warmup_can_be_a_fraction_of_all_steps():
    by_number = CosineSchedule.Config(peak=1.0, warmup_steps=5, total_steps=100).build()
    by_fraction = CosineSchedule.Config(peak=1.0, warmup_fraction=0.05, total_steps=100).build()
    for step in (0, 3, 5, 50, 99):
        assert by_number(jnp.int32(step)) == by_fraction(jnp.int32(step))
    with pytest.raises(ConfigError, match=r"^warmup_steps: got 5, but warmup_fraction=0\.5 sets"):
        CosineSchedule.Config(warmup_steps=5, warmup_fraction=0.5, total_steps=100).build()
