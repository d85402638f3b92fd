"""Fault policies: spikes by a robust statistic, and replays that tell data from hardware."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest

from dovetail.config import ConfigError, StorageError
from dovetail.config.registry import find_component, known_components
from dovetail.config.typecheck import satisfies
from dovetail.run import load_all_components
from dovetail.runtime import (
    BadState,
    Continue,
    CorruptResult,
    FailedSave,
    FaultAction,
    FaultEvent,
    FaultLog,
    FaultPolicy,
    NonFiniteStep,
    RollBack,
    StepEnd,
    Stop,
    StopOnFaults,
)
from dovetail.runtime.fault_policies import ReplayFaults, SkipSpikes
from tests.outside import skip_spikes

CHOOSE = random.Random(0)
USUAL = [
    StepEnd(step, 3 + CHOOSE.gauss(0, 0.1), 1 + CHOOSE.gauss(0, 0.2)) for step in range(1, 101)
]
SPIKE = StepEnd(101, 9.5, 1.0)
JUMP = StepEnd(101, 3.0, 40.0)
NAN = NonFiniteStep(101, "Step 101: the loss is not finite (loss nan, gradient norm nan).")


def policies():
    """Returns every policy of the package, and those of the outside packages."""
    load_all_components()
    own = ("dovetail.", skip_spikes.__name__)
    names = known_components(lambda component: satisfies(component, FaultPolicy))
    found = [find_component(name, "") for name in names]
    return [each for each in found if each.__module__.startswith(own)]


def after_usual(policy):
    for event in USUAL:
        assert policy.on_event(event) == Continue(), event
    return policy


@pytest.mark.parametrize("spike", [SPIKE, JUMP], ids=["loss", "gradient norm"])
def test_a_spike_is_left_out(spike):
    action = after_usual(SkipSpikes.Config().build()).on_event(spike)
    assert isinstance(action, RollBack)
    assert action.skip_batch
    assert "robust standard deviations above its median" in action.reason


def test_a_falling_loss_is_no_spike():
    policy = SkipSpikes.Config().build()
    for step in range(1, 2000):
        event = StepEnd(step, 2 + 8 * math.exp(-step / 200), 5 / math.sqrt(step))
        assert policy.on_event(event) == Continue()


def test_one_spike_does_not_hide_the_next():
    policy = after_usual(SkipSpikes.Config().build())
    for step in range(101, 111):
        assert isinstance(policy.on_event(StepEnd(step, 9.5, 1.0)), RollBack)


def test_what_is_not_finite_is_left_out():
    assert SkipSpikes.Config().build().on_event(NAN) == RollBack(NAN.message)


def test_too_many_spikes_are_not_the_data():
    policy = after_usual(SkipSpikes.Config(max_skips=2).build())
    actions = [policy.on_event(SPIKE) for _ in range(3)]
    assert [type(action) for action in actions] == [RollBack, RollBack, Stop]
    assert "faults.max_skips=2" in actions[-1].reason


def corrupt(persists):
    return CorruptResult(8, "Step 8: cpu:5 is at fault.", ("cpu:5",), persists, verified=4)


EVENTS = {
    StepEnd: USUAL[0],
    NonFiniteStep: NAN,
    BadState: BadState(5, "x is not finite"),
    FailedSave: FailedSave(5, "the disk is full"),
    CorruptResult: corrupt(persists=True),
}
HARMLESS = (StepEnd, FailedSave)


@pytest.mark.parametrize("event", get_args(FaultEvent), ids=lambda event: event.__name__)
@pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.__name__)
def test_every_policy_answers_every_event(policy, event):
    """The loop cannot continue after what is not finite or corrupt, and a full disk is no end."""
    for built in (policy.Config().build(), after_usual(policy.Config().build())):
        action = built.on_event(EVENTS[event])
        assert isinstance(action, FaultAction)
        assert isinstance(action, Continue) == (event in HARMLESS)
        assert built.on_event(StepEnd(102, 3.0, 1.0)) == Continue(), "a later step is as usual"


def test_the_sweep_has_every_policy():
    names = {policy.__name__ for policy in policies()}
    assert names >= {"StopOnFaults", "SkipSpikes", "ReplayFaults", "LeaveOutSpikes"}


@pytest.mark.parametrize("kind", [SkipSpikes, ReplayFaults])
def test_a_bad_state_stops(kind):
    message = "x is not finite"
    assert kind.Config().build().on_event(BadState(5, message)) == Stop(message)


@pytest.mark.parametrize("persists", [False, True])
def test_a_corrupt_result_stops_by_default(persists):
    event = corrupt(persists)
    assert StopOnFaults.Config().build().on_event(event) == Stop(event.message)


@pytest.mark.parametrize("kind", [SkipSpikes, ReplayFaults])
def test_one_corrupt_result_that_does_not_repeat_is_rolled_back(kind):
    policy, event = kind.Config().build(), corrupt(persists=False)
    assert policy.on_event(event) == RollBack(event.message, skip_batch=False)
    assert policy.on_event(event) == Stop(event.message), "twice is no accident"
    assert kind.Config().build().on_event(corrupt(persists=True)) == Stop(event.message)


def test_a_disk_that_is_full_does_not_change_the_action(tmp_path, caplog):
    log = FaultLog(tmp_path / "gone")
    log.record(NAN, Stop("bad"), None)
    assert "A NonFiniteStep is not recorded" in caplog.text
    with pytest.raises(StorageError, match="would train on batches that this one skips"):
        log.write_skips(((3, 4),))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="warmup <= window"):
        SkipSpikes.Config(warmup=50, window=10).build()


@pytest.mark.parametrize("fault", [SPIKE, NAN], ids=["spike", "not finite"])
def test_a_fault_that_repeats_is_the_data(fault):
    policy = after_usual(ReplayFaults.Config().build())
    first = policy.on_event(fault)
    assert isinstance(first, RollBack)
    assert not first.skip_batch
    assert first.reason.endswith("Replaying it.")
    for event in USUAL[90:]:  # from the newest checkpoint
        assert policy.on_event(event) == Continue()
    second = policy.on_event(fault)
    assert isinstance(second, RollBack)
    assert second.skip_batch
    assert policy.on_event(StepEnd(101, 3.0, 1.0)) == Continue(), "with the next batch"


@pytest.mark.parametrize("fault", [SPIKE, NAN], ids=["spike", "not finite"])
def test_a_fault_that_does_not_repeat_is_the_hardware(fault):
    policy = after_usual(ReplayFaults.Config().build())
    policy.on_event(fault)
    for event in USUAL[90:]:
        assert policy.on_event(event) == Continue()
    action = policy.on_event(StepEnd(101, 3.0, 1.0))
    assert isinstance(action, Stop)
    assert "Step 101 computed two different results" in action.reason
    assert "loss 3.0 and gradient norm 1.0" in action.reason


def test_a_step_before_the_fault_that_differs_is_the_hardware():
    policy = after_usual(ReplayFaults.Config().build())
    policy.on_event(SPIKE)
    assert policy.on_event(USUAL[95]) == Continue()
    changed = StepEnd(97, USUAL[96].loss * (1 + 2**-50), USUAL[96].gradient_norm)
    action = policy.on_event(changed)
    assert isinstance(action, Stop)
    assert "Step 97 computed two different results" in action.reason
