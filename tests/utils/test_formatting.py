import pytest

from dovetail.utils import format_bytes, format_count, format_duration, plural


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.5, "0.5 s"),
        (5, "5 s"),
        (2.4567, "2.46 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3 * 3600 + 120, "3 h 02 min"),
        (23 * 3600 + 59.6 * 60, "1 day"),
        (3780 * 86_400, "3,780 days"),
        (12.5 * 86_400, "12.5 days"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_700, "1 MB"), (80e9, "80 GB")],
)
def test_bytes(number, text):
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *[(12, "12"), (999, "999"), (7_241_000_000, "7.24B"), (999_999, "1M"), (2.5e15, "2.5P")],
        *[(4.92e22, "49.2Z"), (1e24, "1Y"), (1e28, "10,000Y")],
    ],
)
def test_counts(number, text):
    assert format_count(number) == text


def test_nouns_agree_with_their_number():
    assert plural(1, "step") == "1 step"
    assert plural(0, "step") == "0 steps"
    assert plural(1000, "step") == "1,000 steps"
    assert plural(2, "copy", "copies") == "2 copies"
