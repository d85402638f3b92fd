"""`train --profile FIRST:END`: the range is checked before anything is done."""

import pytest

from dovetail.cli.train import profile_range
from dovetail.config import ConfigError


def test_a_range_is_half_open():
    assert profile_range(None) is None
    assert profile_range("10:13") == range(10, 13)


@pytest.mark.parametrize("text", ["3", "3:3", "a:b", ":4", "-1:4"])
def test_a_range_that_is_none(text):
    with pytest.raises(ConfigError, match="--profile: expected FIRST:END"):
        profile_range(text)
