"""SAM of an outside package: it descends along the second gradient, and is a run of its own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail
from dovetail.config import from_text, identity, to_text
from dovetail.learner import Sgd
from dovetail.runtime import RunFolder, short_hash
from tests.outside.sam import SAM, PerturbedGradients, Sam
from tests.outside.steps import EIGHT, ONE, bits, resumed_and_at_once, take_steps


@pytest.fixture(scope="module")
def on_one_device():
    return take_steps(ONE, steps=6, peak=3e-3, **SAM)


def test_the_loss_falls_and_the_direction_is_that_of_the_second_gradient(on_one_device) -> None:
    assert on_one_device.losses[-1] < on_one_device.losses[0] - 0.1
    sgd = Sgd.Config(momentum=0.0)

    def one_step(**values: Any) -> Any:
        found = take_steps(ONE, steps=1, peak=0.1, clip_norm=None, **values)
        return found.states[0].params["decoder/embedding/weight"]

    around = Sam.Config(optimizer=sgd)
    plain = one_step(optimizer=sgd)
    still = one_step(optimizer=around, gradients=PerturbedGradients.Config(radius=0.0))
    moved = one_step(optimizer=around, gradients=SAM["gradients"])
    np.testing.assert_allclose(plain, still, rtol=1e-4, atol=1e-6)
    assert not np.allclose(plain, moved, rtol=1e-4, atol=1e-6)


def test_a_mesh_of_eight_gives_the_same_losses(on_one_device) -> None:
    sharded = take_steps(EIGHT, steps=6, peak=3e-3, **SAM)
    params = sharded.states[-1].params.values()
    assert any(not leaf.sharding.is_fully_replicated for leaf in params)
    np.testing.assert_allclose(sharded.losses, on_one_device.losses, rtol=1e-3)


@pytest.mark.slow
def test_a_run_resumes_with_the_state_of_the_optimizer(tmp_path) -> None:
    resumed, at_once = resumed_and_at_once("sam", tmp_path)
    assert resumed == at_once
    assert len(set(at_once)) == 6


class Spoiled(PerturbedGradients):
    """Perturbs by an infinite radius from the third step on."""

    def radius_at(self, step: jax.Array) -> Any:
        return jnp.where(step >= 2, jnp.inf, self.radius)


@pytest.mark.parametrize("mesh", [ONE, EIGHT], ids=["one", "eight"])
def test_a_second_gradient_that_is_not_finite_changes_nothing(mesh) -> None:
    found = take_steps(mesh, steps=4, peak=3e-3, **SAM | {"gradients": Spoiled.Config()})
    assert [bool(report.finite) for report in found.reports[:3]] == [True, True, False]
    assert np.isfinite(found.losses).all()
    assert found.states[2].halted_at == 2
    assert bits(found.states[1]) == bits(found.states[2]) == bits(found.states[3])


def test_it_is_another_run_than_without_it_or_with_another_radius() -> None:
    plain = dovetail.experiment("tiny-lm")
    sam = plain.override("learner.gradients=PerturbedGradients")
    folders = [
        sam.override("learner.gradients.radius=0.02"),
        sam.override("learner.gradients.radius=0.03"),
        sam,
        plain,
    ]
    assert len({each.folder for each in folders}) == len(folders)
    assert len({short_hash(each.config) for each in folders}) == len(folders)
    accumulated = sam.override(
        "learner.gradients.inner=Accumulate", "learner.gradients.inner.microbatches=2"
    )
    assert identity(accumulated.config) == identity(sam.config)


@pytest.mark.parametrize("kind", ["Accumulate", "GPipe", "OneForwardOneBackward"])
def test_a_run_resumes_with_another_computation_of_the_same_gradients(kind, tmp_path) -> None:
    plain = dovetail.experiment("tiny-lm")
    exact = plain.override(f"learner.gradients={kind}", "learner.gradients.microbatches=2")
    assert exact.folder == plain.folder
    RunFolder(tmp_path).describe(plain.config, {})
    RunFolder(tmp_path).check_identity(exact.config)
    sam = plain.override("learner.gradients=PerturbedGradients")
    with pytest.raises(dovetail.Error, match=r"learner\.gradients: .*Autodiff\(\) -> .*Perturbed"):
        RunFolder(tmp_path).check_identity(sam.config)


def test_it_survives_as_text() -> None:
    for config in SAM.values():
        assert from_text(to_text(config)) == config
