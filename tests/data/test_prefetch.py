import threading
import time

import pytest

from dovetail.config import ConfigError
from dovetail.data import Prefetcher


def test_items_come_in_order_and_end():
    with Prefetcher(lambda number: number * 10, first=3, end=7, ahead=3) as items:
        assert list(items) == [30, 40, 50, 60]
        with pytest.raises(StopIteration):
            next(items)


def test_work_is_done_ahead_but_no_further():
    made = []
    with Prefetcher(made.append, ahead=3) as items:
        deadline = time.monotonic() + 5
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == [0, 1, 2]
        next(items)
        while len(made) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == [0, 1, 2, 3]


def fails_at_two(number):
    if number == 2:
        raise ConfigError("item 2 is bad")
    return number


def test_an_error_comes_in_its_turn_with_its_place():
    with Prefetcher(fails_at_two, ahead=4) as items:
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(ConfigError, match="item 2 is bad") as caught:
            next(items)
    assert "fails_at_two" in [entry.name for entry in caught.traceback]


def test_closing_ends_the_thread_and_can_be_done_twice():
    before = threading.active_count()
    items = Prefetcher(lambda number: number)
    assert next(items) == 0
    items.close()
    items.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        next(items)


def test_leaving_by_an_error_closes_too():
    before = threading.active_count()
    with pytest.raises(KeyError), Prefetcher(lambda number: number):
        raise KeyError
    assert threading.active_count() == before


def test_an_error_that_nobody_asked_for_is_no_obstacle_to_closing():
    Prefetcher(fails_at_two, first=2).close()


def test_there_must_be_something_to_make_ahead():
    with pytest.raises(ConfigError, match="ahead: expected at least 1, got 0"):
        Prefetcher(lambda number: number, ahead=0)
