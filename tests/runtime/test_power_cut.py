"""A power cut at any moment leaves the newest checkpoint that was saved, or a newer one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.runtime.chaos.power_cuts import Image, PowerCuts, trace_command, write_image
from dovetail.runtime.checkpoints import restoring
from tests.runtime.power_cut_saver import SAVED, STEPS, checkpointer, state
from tests.runtime.strace import install_strace


def lost(image: Image, promised: int, scratch: Path, tiers: str) -> str | None:
    """Restores from what a power cut left; returns what is wrong with it."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    write_image(image, scratch)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state(0)
    )
    try:
        found = checkpointer(scratch, tiers == "local").restore(like)
    except Exception as error:  # noqa: BLE001  # whatever it is, the run would not go on
        return f"step {promised} was saved, but: {error}"
    step = 0 if found is None else found[0]
    if step < promised:
        return f"step {promised} was saved, but step {step} is restored"
    if found is not None:
        jax.tree.map(np.testing.assert_array_equal, found[1], state(step))
    return None


def problems(folder: Path, tiers: str, mutation: str = "") -> tuple[list[str], int]:
    """Returns what is wrong after power cuts, and how many different ones were tried."""
    run, trace = folder / "run", folder / "trace"
    run.mkdir()
    program = [sys.executable, "-m", "tests.runtime.power_cut_saver", str(run), tiers]
    install_strace()
    tracer = trace_command(trace)
    subprocess.run([*tracer, *program, *([mutation] if mutation else [])], check=True)
    cuts, wrong, tried = PowerCuts(trace, run), [], 0
    promised = 0
    for call, durable, visible in cuts.images():
        made = [name for name in visible if name.startswith(SAVED)]
        promised = max((int(name.removeprefix(SAVED)) for name in made), default=0)
        for image in (durable, visible):
            tried += 1
            problem = lost(image, promised, folder / "scratch", tiers)
            if problem is not None:
                wrong.append(f"after {call}: {problem}")
    assert promised == STEPS[-1], "the whole story was replayed"
    assert not cuts.unknown
    return wrong, tried


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "_SECONDS_BEFORE_RETRY", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("tiers", ["durable", "local"])
def test_a_power_cut_at_any_moment_loses_nothing_that_was_saved(tmp_path: Path, tiers: str) -> None:
    wrong, tried = problems(tmp_path, tiers)
    assert not wrong
    assert tried > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    ["files are not flushed", "folders are not flushed", "the old one is removed first"],
)
def test_a_runtime_without_the_order_is_caught(tmp_path: Path, mutation: str) -> None:
    wrong, _ = problems(tmp_path, "durable", mutation)
    assert any(re.search(r"step \d was saved, but", problem) for problem in wrong)
