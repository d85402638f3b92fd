"""The order of a mixture: exact quotas, no row lost, the same from any step and any host."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data.mixture.order import (
    MixtureOrder,
    StageQuotas,
    check_epochs,
    check_weights,
    quotas,
    temperature_weights,
)
from dovetail.data.order import permute

fewer = settings(max_examples=40)


@st.composite
def orders(draw: st.DrawFn) -> MixtureOrder:
    count = draw(st.integers(1, 4))
    names = tuple(f"source{number}" for number in range(count))
    sizes = tuple(draw(st.integers(1, 60)) for _ in names)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 40), max_size=3)))]
    stages = []
    for start in starts:
        quota = [draw(st.integers(0, 9)) for _ in names]
        quota[draw(st.integers(0, count - 1))] += 1
        stages.append(StageQuotas(start, tuple(quota)))
    return MixtureOrder(
        names, sizes, tuple(stages), draw(st.integers(1, 13)), draw(st.integers(0, 2**63))
    )


def stream(order: MixtureOrder, batches: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [order.rows(step) for step in range(batches)]
    sources, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    return sources, rows


@fewer
@given(orders())
def test_every_block_has_its_quotas(order: MixtureOrder) -> None:
    sources, _ = stream(order, 60)
    ends = [*(stage.start for stage in order.stages[1:]), 60]
    for stage, end in zip(order.stages, ends, strict=True):
        length = sum(stage.quotas)
        own = sources[stage.start * order.batch_size : end * order.batch_size]
        for start in range(0, len(own) - length + 1, length):
            counts = np.bincount(own[start : start + length], minlength=len(order.names))
            assert tuple(counts) == stage.quotas


@fewer
@given(orders())
def test_a_source_gives_each_row_once_in_an_epoch(order: MixtureOrder) -> None:
    sources, rows = stream(order, 60)
    for source, size in enumerate(order.sizes):
        own = rows[sources == source]
        for start in range(0, len(own), size):
            epoch = own[start : start + size]
            assert len(set(epoch.tolist())) == len(epoch)
            assert (epoch >= 0).all()
            assert (epoch < size).all()


@given(orders(), st.data())
def test_any_step_and_any_rows_alone_are_the_same(order: MixtureOrder, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, 59))
    sources, rows = order.rows(step)
    cut = data.draw(st.integers(0, order.batch_size))
    for own in (slice(0, cut), slice(cut, None), slice(cut, None, 2)):
        some_sources, some_rows = order.rows(step, own)
        np.testing.assert_array_equal(some_sources, sources[own])
        np.testing.assert_array_equal(some_rows, rows[own])


@fewer
@given(orders(), st.integers(0, 60))
def test_what_was_taken_is_counted(order: MixtureOrder, batches: int) -> None:
    counts = Counter[int]()
    for step in range(batches):
        counts.update(order.rows(step)[0].tolist())
    assert order.taken(batches).tolist() == [counts[n] for n in range(len(order.names))]


def test_another_source_does_not_change_the_order_within_one() -> None:
    two = MixtureOrder(("a", "b"), (50, 70), (StageQuotas(0, (4, 4)),), 8, seed=3)
    three = MixtureOrder(("a", "new", "b"), (50, 9, 70), (StageQuotas(0, (4, 2, 2)),), 8, seed=3)
    in_two, in_three = stream(two, 12), stream(three, 12)
    np.testing.assert_array_equal(in_two[1][in_two[0] == 0], in_three[1][in_three[0] == 0])
    own_b = in_three[1][in_three[0] == 2]
    np.testing.assert_array_equal(in_two[1][in_two[0] == 1][: len(own_b)], own_b)


def test_skipped_batches_are_left_out() -> None:
    plain = MixtureOrder(("a", "b"), (50, 70), (StageQuotas(0, (3, 5)),), 8)
    skipping = MixtureOrder(("a", "b"), (50, 70), (StageQuotas(0, (3, 5)),), 8, skips=((2, 5),))
    for step, batch in enumerate((0, 1, 5, 6, 7)):
        assert skipping.batch_number(step) == batch
        for found, expected in zip(skipping.rows(step), plain.rows(batch), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_the_order_never_changes() -> None:
    """Were this to change, a run that resumes would see other data."""
    order = MixtureOrder(("a", "b"), (50, 70), (StageQuotas(0, (2, 6)),), 8, seed=1)
    sources, rows = order.rows(3)
    assert sources.tolist() == [1, 1, 0, 1, 1, 1, 1, 0]
    assert rows.tolist() == [45, 54, 13, 33, 64, 14, 20, 1]


def test_step_a_million_costs_what_step_ten_does(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tuple(StageQuotas(start, (100, 300, 624)) for start in range(0, 900_000, 100_000))
    order = MixtureOrder(("a", "b", "c"), (10**9, 10**9, 10**9), stages, 512)
    order.rows(0)
    permuted: list[int] = []

    def counting(positions: np.ndarray, *rest: object) -> np.ndarray:
        permuted.append(len(positions))
        return permute(positions, *rest)

    monkeypatch.setattr("dovetail.data.mixture.order.permute", counting)
    order.rows(10)
    early = sum(permuted)
    permuted.clear()
    order.rows(1_000_000)
    assert sum(permuted) == early == 1024 + 512, "a block, and the rows of the batch"


# Weights.


@given(
    st.dictionaries(st.text(min_size=1), st.integers(1, 1000), min_size=1, max_size=8),
    st.integers(9000, 20000),
)
def test_quotas_are_within_one_row_of_the_weights(weights: dict[str, int], block: int) -> None:
    found = quotas(weights, block)
    assert sum(found) == block
    for quota, weight in zip(found, weights.values(), strict=True):
        assert abs(quota - weight / sum(weights.values()) * block) < 1


def test_weights_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="weight of b: expected 0 or more, got -1"):
        quotas({"a": 1, "b": -1}, 8)
    with pytest.raises(ConfigError, match="weights of a, b are all 0"):
        quotas({"a": 0, "b": 0}, 8)
    with pytest.raises(ConfigError, match=r"0\.001 of 100 rows is less than .* block to 1000"):
        check_weights({"a": 999, "b": 1}, 100)
    assert quotas({"a": 999, "b": 1}, 100) == (100, 0), "as at the start of a ramp"
    assert quotas({"a": 1, "b": 0}, 8) == (8, 0), "a source may rest in a stage"


def test_a_higher_temperature_is_more_equal() -> None:
    sizes = {"a": 1000, "b": 10}
    assert temperature_weights(sizes, 1.0) == {"a": 1.0, "b": 0.01}
    assert temperature_weights(sizes, 2.0)["b"] == pytest.approx(0.1)


def test_a_source_that_is_repeated_too_often_is_refused() -> None:
    order = MixtureOrder(("a", "b"), (100, 10), (StageQuotas(0, (6, 2)),), 8)
    check_epochs(order, 10, (1.0, 2.0))
    message = r"source b: 11 batches take 22 rows of its 10, which is 2\.20 epochs.*for 2"
    with pytest.raises(ConfigError, match=message):
        check_epochs(order, 11, (1.0, 2.0))
