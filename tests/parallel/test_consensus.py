"""Consensus in one process; several processes are in tests/cli/test_processes.py."""

from __future__ import annotations

from dovetail.parallel import HostConsensus, MeshLayout


def test_a_single_process_reads_its_own_flag() -> None:
    consensus = HostConsensus(MeshLayout.Config(fsdp=-1).build().mesh(), lag=2)
    assert [consensus.any_host(flag) for flag in (False, True, False)] == [False, True, False]
