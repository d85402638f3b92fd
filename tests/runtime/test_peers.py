"""Two real processes save and restore together: they never use two different steps."""

from pathlib import Path

import pytest

from tests.runtime.two_processes import run_pair


@pytest.mark.slow
def test_two_processes_agree_on_every_checkpoint(tmp_path: Path) -> None:
    said = run_pair("tests.runtime.peers", tmp_path, "durable")
    for one in said:
        assert one["saved"] is True
        assert one["restored"] == [2, True]
        # Two of the four shards of both arrays, and the step on both devices.
        assert one["bytes read"] == (4 * 64 * 64 + 8 * 64) * 4 // 2 + 2 * 4, "each byte once"
        assert one["restored after damage"] == [1, True], "although only process 1 met the damage"
        assert one["one cannot write"] == [False, True], "both know, at once"
        assert one["saved again"] is True
        # Step 2 is damaged; 3 and 5 were never committed, as one process did not write.
        assert one["readable"] == [1, 2, 4]
    saved, messages = said[0]["one stays away"]
    assert not saved
    assert "process 1 did not answer within 2 s" in messages[0]
    log = (tmp_path / "0.txt").read_text()
    assert "The checkpoint of step 2 cannot be used (on process 1: " in log
    assert "process 1 cannot go on: OSError: [Errno 28] No space left on device" in log


@pytest.mark.slow
def test_two_processes_keep_copies_for_each_other(tmp_path: Path) -> None:
    said = run_pair("tests.runtime.peers", tmp_path, "local")
    for one in said:
        assert one["saved"] is True
        assert one["restored"] == [14, True]
        assert one["restored with a damaged manifest"] == [14, True], "process 0 has another"
        assert one["restored without a disk"] == [14, True], "from the copy at process 0"
        assert one["saved again"] is True
        assert one["restored after a flip"] == [16, True], "from the copy at process 0"
        assert one["restored after two flips"] == [14, True], "both copies are damaged"
        (fault,) = one["no copy"]
        assert "No route to host" in fault, "both know"
    assert "1.shards is damaged: params/w" in (tmp_path / "1.txt").read_text()
