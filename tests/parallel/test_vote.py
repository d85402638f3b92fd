"""A vote among one process; several are in tests/cli/test_processes.py."""

from __future__ import annotations

from dovetail.parallel import MeshLayout, Vote


def test_a_process_alone_has_its_answer_at_once() -> None:
    vote = Vote(MeshLayout.Config(fsdp=-1).build().mesh(), lag=2)
    assert [vote.cast(flag) for flag in (False, True, False)] == [False, True, False]
