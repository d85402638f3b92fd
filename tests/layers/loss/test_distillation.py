"""Distillation: the divergence, a teacher that is only asked, and one that comes from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, replace, select
from dovetail.generate import with_kv_cache
from dovetail.interop import unwrapped
from dovetail.layers import FeedForward, Linear, NextTokenLoss
from dovetail.layers.feed_forward import PlainFeedForward
from dovetail.layers.loss import chunks
from dovetail.layers.loss.distillation import DistillationLoss
from dovetail.layers.loss.wrappers import DocumentLoss
from dovetail.layers.moe import LossFreeBias, MixtureOfExperts, TopKRouter
from dovetail.layers.moe.losses import LoadBalanceLoss
from dovetail.module import functional, initialize_variables, parameter_specs, variable_specs
from dovetail.run import InitFromRun, InitSubmoduleFromRun
from dovetail.runtime import RunFolder, abstract_state
from dovetail.trainer import (
    Hooks,
    InitSubmoduleFromModel,
    RandomInit,
)
from dovetail.trainer.initialization import initial_state
from tests.features.representatives import every_representative, tiny
from tests.layers.loss.models import KEY, batch, config, first_params, losses, scores


def taught(teacher: Any = None, **values: Any) -> Any:
    """A student whose teacher has another width and bounded scores."""
    teacher = teacher or config(NextTokenLoss.Config(), capped=True)
    return config(DistillationLoss.Config(teacher=teacher, **values))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_divergence(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "count_chunks", lambda *_: 3)
    model = taught(weight=0.5, temperature=temperature).build()
    teacher = config(NextTokenLoss.Config(), capped=True).build()
    params = first_params(model)
    own = {p.removeprefix("loss/teacher/"): a for p, a in params.items() if "teacher" in p}
    assert own.keys() == parameter_specs(teacher).keys()
    weights = batch().loss_weights

    def reference(params: Any) -> jax.Array:
        theirs, mine = scores(teacher, own), scores(model, params)
        shares = jax.nn.softmax(theirs / temperature)
        logs = [jnp.log(jax.nn.softmax(each / temperature)) for each in (theirs, mine)]
        divergence = (shares * (logs[0] - logs[1])).sum(-1)
        return 0.5 * temperature**2 * (weights * divergence).sum()

    def ours(params: Any) -> jax.Array:
        return losses(model, params)["loss/distillation"].total

    (mine, by_mine), (theirs, by_theirs) = (
        jax.jit(jax.value_and_grad(function))(params) for function in (ours, reference)
    )
    assert mine > 0
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    for path, gradient in by_mine.items():
        np.testing.assert_allclose(gradient, by_theirs[path], atol=1e-5, err_msg=path)
        assert gradient.any() == (path not in {f"loss/teacher/{name}" for name in own})


def test_it_is_added_in_training_only_and_with_the_weights_that_count() -> None:
    model = taught().build()
    params = first_params(model)
    assert len(losses(model, params, training=False)) == 1
    both = taught(base=DocumentLoss.Config(skip=1)).build()
    found = losses(both, params)
    np.testing.assert_allclose([loss.weight for loss in found.values()], [3.0, 3.0], rtol=1e-5)


def test_a_teacher_is_only_asked() -> None:
    """Its experts add no loss, and their bias is not moved."""
    router = TopKRouter.Config(bias=LossFreeBias.Config(rate=0.5))
    experts = MixtureOfExperts.Config(
        num_experts=4, top_k=1, router=router, losses={"b": LoadBalanceLoss.Config(coefficient=1.0)}
    )
    teacher = replace(config(NextTokenLoss.Config()), FeedForward, experts)
    model = taught(teacher).build()
    variables = initialize_variables(model, KEY)
    assert variables
    assert variables.keys() == variable_specs(model).keys()
    _, outputs = functional(
        model,
        first_params(model),
        batch(),
        variables=variables,
        training=True,
        losses="return",
        key=KEY,
    )
    assert outputs.losses.keys() == {"loss/base/next_token", "loss/distillation"}
    for path, value in outputs.variables.items():
        np.testing.assert_array_equal(value, variables[path])


def test_a_teacher_of_other_tokens_is_refused() -> None:
    teacher = config(NextTokenLoss.Config()).set(vocab_size=19)
    model = taught(teacher).build()
    with pytest.raises(ConfigError, match=r"its vocabulary has 19 tokens, and the student's 17"):
        losses(model, first_params(model))


def test_features_that_come_later_leave_the_teacher_alone() -> None:
    plain = config(NextTokenLoss.Config())
    changed = replace(taught(plain), FeedForward, PlainFeedForward.Config())
    assert changed.loss.teacher == plain
    inside = select(changed, Linear).found
    assert inside
    assert not any("teacher" in path for path in inside)


@every_representative
def test_it_applies_and_leaves_again(name: str) -> None:
    plain, config = tiny(name), tiny(name, "distill")
    model = config.build().model
    assert unwrapped(config.model) == plain.model
    paths = parameter_specs(model).keys()
    own = parameter_specs(plain.build().model).keys()
    assert paths == own | {f"loss/teacher/{path}" for path in own}
    state = config.build().program().state_shapes
    leaves = jax.tree_util.tree_leaves_with_path(state.optimizer)
    kept = {getattr(key, "key", None) for place, _ in leaves for key in place}
    assert kept & state.params.keys() == own
    assert parameter_specs(with_kv_cache(model.config, 8).build()).keys() == own


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run to learn from."""
    folder = tmp_path_factory.mktemp("large")
    run = RunFolder(folder)
    run.claim(tiny("tiny-lm"))
    run.describe(tiny("tiny-lm"), {"experiment": "tiny-lm"})
    tiny("tiny-lm").build().train(folder)
    run.release()
    return folder


def test_from_a_run(large: Path, tmp_path: Path) -> None:
    config = tiny("tiny-lm", f"distill:path={large}", "lora:rank=2")
    config.model.decoder.stack.num_layers = 1
    trainer, said = config.build(), []
    trainer.train(tmp_path / "small", hooks=Hooks(said.append))
    assert any("loss/teacher initialized from step 2" in text for text in said)
    stored = restored(tiny("tiny-lm").build(), large)
    small = restored(trainer, tmp_path / "small")
    for path, array in stored.params.items():
        np.testing.assert_array_equal(small.params[f"loss/teacher/{path}"], array)
    trained = {path for path in small.params if "/lora_" in path}
    assert trained
    assert not any("teacher" in path for path in trained)


def restored(trainer: Any, folder: Path) -> Any:
    program = trainer.program()
    like = abstract_state(program.state_shapes, program.state_shardings)
    trainer.checkpointer.open(folder / "checkpoints")
    return trainer.checkpointer.restore(like)[1]


def test_a_submodule_must_be_complete(large: Path) -> None:
    start = InitSubmoduleFromRun.Config(submodule="loss/teacher", source=str(large)).build()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    struct = jax.ShapeDtypeStruct((32,), jnp.float32, sharding=sharding)
    known = {"loss/teacher/decoder/norm/scale": struct}
    with pytest.raises(ConfigError, match=r"source: the model has no parameters below 'loss/tea"):
        start.arrays({"decoder/norm/scale": struct}, print)
    with pytest.raises(ConfigError, match=r"loss/teacher is loaded from .* has no 'other/x'"):
        start.arrays({**known, "loss/teacher/other/x": struct}, print)


def test_a_run_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        tiny("tiny-lm", f"distill:path={tmp_path}")
    start = InitSubmoduleFromRun.Config(
        submodule="loss/teacher", source=str(tmp_path / "no")
    ).build()
    with pytest.raises(ConfigError, match="does not exist"):
        start.check()


def test_without_a_path_the_teacher_is_the_model_as_it_begins(large: Path) -> None:
    config = tiny("tiny-lm", f"from-run:path={large}", "distill")
    assert config.initialization.source == config.initialization.run == str(large)
    assert config.initialization.rest == InitFromRun.Config(run=str(large))
    assert config.model.loss.teacher == tiny("tiny-lm").model


@pytest.mark.parametrize("name", ["tiny-lm", "deepseek-v3"])
def test_without_any_run_too(name: str) -> None:
    """From nothing, teacher and student begin with the same random values, variables too."""
    trainer = tiny(name, "distill").build()
    assert trainer.initialization.config.rest == RandomInit.Config()
    state = initial_state(trainer.program(), trainer.initialization, print)
    for arrays in (state.params, state.variables):
        for path in [path for path in arrays if not path.startswith("loss/teacher/")]:
            np.testing.assert_array_equal(arrays[f"loss/teacher/{path}"], arrays[path])
    plain = tiny(name).build().program().initialize()
    for path, array in plain.params.items():
        np.testing.assert_array_equal(state.params[path], array)


def test_a_model_that_was_changed_since_cannot_be_copied() -> None:
    start = InitSubmoduleFromModel.Config(submodule="loss/teacher").build()
    struct, other = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in (32, 16))
    with pytest.raises(ConfigError, match=r"submodule: the model has no parameters below"):
        start.copies({"scale": struct})
    with pytest.raises(ConfigError, match=r"of shape \(32,\), is a copy of .* which is not there"):
        start.copies({"loss/teacher/scale": struct})
    with pytest.raises(ConfigError, match=r"which is of shape \(16,\): the model was changed"):
        start.copies({"loss/teacher/scale": struct, "scale": other})


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss.temperature: expected above 0, got 0.0"):
        taught(temperature=0.0).build()
