"""Two real processes repeat their steps on each other's devices, over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.two_processes import run_pair


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_fault_of_either_process_is_named_by_both(tmp_path: Path, devices: int) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(20):
        lines = [f"def function_{number}_{line}(x):\n    return x + {line}\n" for line in range(12)]
        (corpus / f"{number}.txt").write_text("\n".join(lines))
    for said in run_pair("tests.runtime.sdc.pair", tmp_path, devices):
        assert said["healthy"] == 20, "no false alarm in 20 checks"
        for kind in ("faulty", "spread"):
            message = said[kind]
            assert message.startswith("Step 1 gave two results from the same state and batch")
            assert "(process 1 on " in message
            if devices == 2:
                assert "cpu:2049 (process 1 on " in message or "cpu:3 (process 1 on " in message
                assert message.count("(process ") == 1, "only the faulty device is named"
            else:
                assert message.count("(process ") == 2, "two devices cannot be told apart"
