"""Silent corruption in a run: it stops, or rolls back, and no corrupt state is kept as good."""

from __future__ import annotations

import json
import re

import jax
import pytest

from dovetail.config import Component, ConfigError
from dovetail.parallel import HostMemory, MeshLayout
from dovetail.runtime import Checkpointer, Continue, RepeatSteps, SkipPreflight, SkipSpikes
from dovetail.runtime.sdc import preflight
from dovetail.runtime.sdc.reordering import mesh_in_order, rolled
from dovetail.trainer import FaultError, loop
from tests.runtime.sdc.faulty import FaultyDevice, flip
from tests.trainer.test_trainer import losses, train

WEIGHT = "decoder/stack/layer/feed_forward/up/weight"


@pytest.fixture
def checked(config):
    """Saves every third step, and checks every fourth."""
    return config.set(
        checkpointer=Checkpointer.Config(every=3, keep=10),
        step_check=RepeatSteps.Config(every=4),
        mesh=MeshLayout.Config(data=2, fsdp=4),
    )


def install(monkeypatch, fault, after_step=0):
    """Every compiled step runs on a machine with a faulty device, from some step on."""
    compile_step = loop.compile_step

    def compiled(lowered, log):
        step = compile_step(lowered, log)
        faulty = fault.wrap(step)

        def run(state, *rest):
            return (faulty if int(state.step) >= after_step else step)(state, *rest)

        return run

    monkeypatch.setattr(loop, "compile_step", compiled)


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


SPREAD = pytest.param(None, id="in its batch", marks=pytest.mark.slow)


@pytest.mark.parametrize("path", [pytest.param(WEIGHT, id="in its shard"), SPREAD])
def test_a_lasting_fault_stops_the_run(checked, tmp_path, monkeypatch, path):
    install(monkeypatch, FaultyDevice(jax.devices()[5], path), after_step=5)
    with pytest.raises(
        FaultError, match=r"Step 8 gave two results .* cpu:5 \(process 0 on"
    ) as stop:
        train(checked, tmp_path)
    assert str(stop.value).endswith("The state after it is not saved.")
    (event,) = events(tmp_path)
    assert (event["event"], event["action"], event["step"]) == ("CorruptResult", "Stop", 8)
    assert event["persists"]
    assert event["verified"] == 4
    assert saved(tmp_path) == ["3-1", "suspect-6-1"], (
        "step 4 was found good, and step 6 was not checked"
    )


@pytest.mark.slow
def test_after_a_stop_the_run_goes_on_from_the_last_good_state(checked, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        install(patch, FaultyDevice(jax.devices()[5], WEIGHT), after_step=5)
        with pytest.raises(FaultError):
            train(checked, tmp_path / "run")
    train(checked, tmp_path / "run")  # on other devices
    train(checked, tmp_path / "undisturbed")
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_passing_fault_is_rolled_back(checked, tmp_path, monkeypatch):
    train(checked, tmp_path / "undisturbed")
    checked.faults = SkipSpikes.Config()
    # Calls 1 to 3 are steps; 4 is the repeat of step 4, and 5 is step 4.
    install(monkeypatch, FaultyDevice(jax.devices()[5], WEIGHT, [5]))
    train(checked, tmp_path / "run")
    (event,) = events(tmp_path / "run")
    assert (event["event"], event["action"], event["step"]) == ("CorruptResult", "RollBack", 4)
    assert event["resumed_at"] == 0, "step 3 was not checked"
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")


def test_a_policy_cannot_continue_with_a_corrupt_state(checked, tmp_path, monkeypatch):
    class Careless(Component):
        class Config(Component.Config["Careless"]):
            pass

        def on_event(self, event):
            return Continue()

    checked.faults = Careless.Config()
    install(monkeypatch, FaultyDevice(jax.devices()[5], WEIGHT))
    with pytest.raises(ConfigError, match="CorruptResult, which cannot be continued"):
        train(checked, tmp_path)


@pytest.mark.parametrize(
    "mesh",
    [{"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2, "model": 2}, {"fsdp": 8}],
    ids=str,
)
@pytest.mark.slow
def test_healthy_devices_raise_no_alarm(config, tmp_path, mesh):
    config = config.set(mesh=MeshLayout.Config(**mesh), steps=30)
    train(config.clone(step_check=RepeatSteps.Config(every=1)), tmp_path / "checked")
    train(config, tmp_path / "alone")
    assert losses(tmp_path / "checked") == losses(tmp_path / "alone"), "a check changes nothing"
    assert not (tmp_path / "checked" / "events.jsonl").exists()


@pytest.mark.slow
def test_the_program_for_rolled_devices_is_the_same(config):
    """So reductions add in the same order, whichever devices compute them."""
    trainer = config.set(mesh=MeshLayout.Config(data=2, fsdp=4)).build()
    mesh = trainer.program().placement.device_mesh
    orders = [tuple(range(8)), rolled(mesh)]
    assert orders[0] != orders[1]
    programs = [trainer.program_on(mesh_in_order(mesh, order)) for order in orders]
    texts = [program.lowered.compile().as_text() for program in programs]
    # Without the tables of source lines, which have addresses of functions.
    texts = [re.sub(r"(?m)^\d+ .*\n|stack_frame_id=\d+", "", text) for text in texts]
    assert "all-gather" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_an_offloaded_optimizer_is_checked_too(config, tmp_path, monkeypatch):
    config.learner.optimizer_memory = HostMemory.Config()
    config.step_check = RepeatSteps.Config(every=2)
    train(config, tmp_path / "healthy")
    install(monkeypatch, FaultyDevice(jax.devices()[5], WEIGHT), after_step=3)
    with pytest.raises(FaultError, match=r"Step 4 gave two results .* cpu:5 "):
        train(config, tmp_path / "faulty")


def test_a_device_that_fails_before_the_first_step_ends_the_run(config, tmp_path, monkeypatch):
    inputs = preflight._inputs

    def damaged(mesh):
        a, b, numbers = inputs(mesh)
        return a, flip(b, jax.devices()[2]), numbers

    monkeypatch.setattr(preflight, "_inputs", damaged)
    with pytest.raises(
        FaultError, match=r"Pre-flight check: cpu:2 \(process 0 on .* wrong product"
    ):
        train(config, tmp_path / "run")
    (event,) = events(tmp_path / "run")
    assert (event["event"], event["step"]) == ("CorruptResult", 0)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    config.preflight = SkipPreflight.Config()
    train(config, tmp_path / "run")
