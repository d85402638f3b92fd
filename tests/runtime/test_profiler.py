"""The profiler: whatever part of its range a run takes ends up in a trace."""

import jax
import jax.numpy as jnp
import pytest

from dovetail.runtime import Profiler


@pytest.fixture
def take(tmp_path):
    """Takes steps under a profiler; returns what it said, and which steps were profiled."""

    def take(chosen, steps, fails_at=None):
        said, profiled = [], []
        profiler = Profiler(tmp_path, chosen, said.append)
        try:
            for step in steps:
                around = profiler.around_step(step)
                if around is None:
                    continue
                profiled.append(step)
                with around:
                    jax.block_until_ready(jnp.ones(3) * step)
                    if step == fails_at:
                        raise FloatingPointError("nan")
        finally:
            profiler.finish()
        return said, profiled

    return take


def traces(folder):
    return list((folder / "profile").rglob("*.xplane.pb"))


def test_only_the_steps_of_the_range_are_looked_at(take, tmp_path):
    said, profiled = take(range(1, 3), range(5))
    assert profiled == [1, 2]
    assert said == [f"profile of steps 1:3 in {tmp_path / 'profile'}"]
    assert len(traces(tmp_path)) == 1


@pytest.mark.parametrize(("steps", "shown"), [(range(2, 6), "2:4"), (range(3), "1:3")])
def test_a_run_that_resumes_or_stops_inside_the_range_profiles_its_part(
    take, tmp_path, steps, shown
):
    said, _ = take(range(1, 4), steps)
    assert said == [f"profile of steps {shown} in {tmp_path / 'profile'}"]
    assert len(traces(tmp_path)) == 1


def test_a_step_that_fails_leaves_its_trace_and_no_tracing(take, tmp_path):
    with pytest.raises(FloatingPointError):
        take(range(1, 4), range(4), fails_at=2)
    assert len(traces(tmp_path)) == 1
    with pytest.raises(RuntimeError, match="No profile started"):
        jax.profiler.stop_trace()


def test_a_range_that_is_never_reached_is_said(take, tmp_path):
    said, _ = take(range(10, 13), range(3))
    assert said == ["profile 10:13: this run took none of these steps; no profile"]
    assert traces(tmp_path) == []
