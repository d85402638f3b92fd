import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data.order import (
    PADDING,
    SequentialOrder,
    ShuffledOrder,
    merged_ranges,
    permute,
)


def key(value):
    return np.array([value], np.uint64)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_permutation_is_one_to_one(size, word):
    found = permute(np.arange(size), size, key(word))
    assert sorted(found.tolist()) == list(range(size))


@given(st.integers(2, 2**60), st.integers(0, 2**64 - 1), st.data())
def test_large_permutations_are_one_to_one(size, word, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    found = permute(np.array(positions), size, key(word))
    assert len(set(found.tolist())) == len(positions)
    assert found.min() >= 0
    assert found.max() < size


def test_small_permutations_are_all_about_equally_likely():
    positions, words = (
        np.tile(np.arange(4), 24_000),
        np.repeat(np.arange(24_000, dtype=np.uint64), 4),
    )
    orders = Counter(
        map(tuple, permute(positions, 4, words * np.uint64(977)).reshape(-1, 4).tolist())
    )
    assert len(orders) == 24
    # A fair count is 1000 with a standard deviation of 31.
    assert 850 < min(orders.values()) <= max(orders.values()) < 1150


def test_the_order_looks_random():
    found = permute(np.arange(100_000), 100_000, key(7))
    assert abs(np.corrcoef(found, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02


def test_any_step_is_reached_at_once():
    order = ShuffledOrder(num_examples=10**13, batch_size=64, seed=3)
    began = time.perf_counter()
    found = order.examples(10**12 // 64)
    assert time.perf_counter() - began < 0.1
    assert len(set(found.tolist())) == 64


def test_each_epoch_has_every_example_once_and_a_new_order():
    order = ShuffledOrder(num_examples=30, batch_size=4, seed=1)
    stream = np.concatenate([order.examples(step) for step in range(15)])
    epochs = stream.reshape(2, 30)
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(30))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_the_order_is_a_function_of_the_seed():
    def first(seed):
        return ShuffledOrder(1000, 50, seed).examples(0).tolist()

    assert first(5) == first(5)
    assert len({tuple(first(seed)) for seed in (-1, 0, 1, 2, 2**63)}) == 5


def test_the_order_never_changes_between_versions():
    # Were this to change, resumed runs would see other batches than the ones they began with.
    assert ShuffledOrder(1000, 6, seed=42).examples(5).tolist() == [871, 454, 976, 795, 811, 926]
    assert ShuffledOrder(500, 6, seed=42).examples(200).tolist() == [121, 148, 389, 347, 364, 180]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_hosts_together_have_the_same_global_batch(count):
    order = ShuffledOrder(num_examples=1000, batch_size=16, seed=9, skips=((3, 5),))
    for step in (0, 3, 777):
        starts = range(0, 16, 16 // count)
        shares = [order.examples(step, slice(start, start + 16 // count)) for start in starts]
        np.testing.assert_array_equal(np.concatenate(shares), order.examples(step))


def test_skips_leave_batches_out():
    plain = ShuffledOrder(1000, 8, seed=2)
    order = ShuffledOrder(1000, 8, seed=2, skips=((7, 9), (2, 4), (3, 5)))
    assert [order.batch_number(step) for step in range(7)] == [0, 1, 5, 6, 9, 10, 11]
    np.testing.assert_array_equal(order.examples(4), plain.examples(9))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=6))
def test_skips_agree_with_striking_batches_off_a_list(pairs):
    skips = tuple((start, start + length) for start, length in pairs)
    left = [n for n in range(400) if not any(start <= n < stop for start, stop in skips)]
    order = ShuffledOrder(10, 2, skips=skips)
    assert [order.batch_number(step) for step in range(100)] == left[:100]


def test_a_bad_skip_is_refused():
    with pytest.raises(ConfigError, match=r"skips: expected ranges .* got \(5, 5\)"):
        merged_ranges(((1, 2), (5, 5)))


def test_sequential_order_takes_everything_once_and_pads():
    order = SequentialOrder.of(num_examples=10, batch_size=4, num_batches=None)
    assert order.num_batches == 3
    assert order.examples(1).tolist() == [4, 5, 6, 7]
    assert order.examples(2).tolist() == [8, 9, PADDING, PADDING]
    assert order.examples(2, slice(1, 3)).tolist() == [9, PADDING]
    with pytest.raises(IndexError, match="batch 3 of 3"):
        order.examples(3)


def test_a_few_batches_are_spread_evenly():
    order = SequentialOrder.of(num_examples=100, batch_size=5, num_batches=2)
    both = [*order.examples(0).tolist(), *order.examples(1).tolist()]
    assert both == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert SequentialOrder.of(10, 4, num_batches=99).num_batches == 3
