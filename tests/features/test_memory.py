"""Features of memory: what each sets, for every kind of model."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import ConfigError, select
from dovetail.layers import Stack
from dovetail.learner import GPipe, OneForwardOneBackward
from dovetail.parallel import (
    HostMemory,
    MeshLayout,
    OffloadNamed,
    SaveAll,
    SaveDots,
    SaveNamed,
    SaveNothing,
)
from tests.features.representatives import every_representative, tiny

SAVED = {
    "remat": SaveNothing.Config(),
    "remat:save=nothing": SaveNothing.Config(),
    "remat:save=dots": SaveDots.Config(),
    "remat:save=attention": SaveNamed.Config(names=("attention_output",)),
    "remat:save=everything": SaveAll.Config(),
    "remat:save=attention_key": SaveNamed.Config(names=("attention_key",)),
    "remat:save=(attention_key,feed_forward_up)": SaveNamed.Config(
        names=("attention_key", "feed_forward_up")
    ),
    "offload": OffloadNamed.Config(names=("layer_input", "attention_output")),
    "offload:names=(layer_input),save=(attention_output)": OffloadNamed.Config(
        names=("layer_input",), save=("attention_output",)
    ),
}


def policies(config: Any) -> list[Any]:
    return [stack.remat for stack in select(config, Stack)]


@pytest.mark.parametrize("text", SAVED)
@every_representative
def test_every_stack_saves_what_is_asked_for(name: str, text: str) -> None:
    found = policies(tiny(name, text))
    assert found
    assert all(policy == SAVED[text] for policy in found)


def test_a_ready_policy_and_tags_do_not_mix() -> None:
    with pytest.raises(ConfigError, match=r"save: expected one of nothing, dots, .* or a list of"):
        tiny("tiny-lm", "remat:save=(dots,attention_key)")


@every_representative
def test_the_optimizer_state_is_in_host_memory(name: str) -> None:
    config = tiny(name, "offload-optimizer")
    assert config.learner.optimizer_memory == HostMemory.Config()
    config.build()


@every_representative
def test_pipelines(name: str) -> None:
    assert tiny(name, "pipeline").learner.gradients == OneForwardOneBackward.Config(microbatches=8)
    text = "pipeline:microbatches=4,schedule=gpipe,repeats=2"
    assert tiny(name, text).learner.gradients == GPipe.Config(microbatches=4, repeats=2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("remat:keep=dots", "remat:save=dots"),
        ("offload:keep=attention_key", "offload:save=attention_key"),
        ("pipeline:rounds=2", "pipeline:repeats=2"),
        ("label-smoothing:share=0.2", "label-smoothing:smoothing=0.2"),
    ],
)
def test_old_names_of_arguments(old: str, new: str) -> None:
    assert tiny("tiny-lm", old) == tiny("tiny-lm", new) != tiny("tiny-lm")
    argument = new.partition(":")[2]
    with pytest.raises(ConfigError, match=f"{argument.partition('=')[0]}: given twice"):
        tiny("tiny-lm", f"{old},{argument}")


def test_an_unknown_schedule() -> None:
    with pytest.raises(ConfigError, match="pipeline:schedule: expected one of '1f1b', 'gpipe'"):
        tiny("tiny-lm", "pipeline:schedule=zero")


@pytest.mark.parametrize("modifiers", [(), ("accumulate:steps=2",)])
def test_an_axis_of_stages_needs_a_pipeline(modifiers: tuple[str, ...]) -> None:
    """Otherwise every device along it would do all of the work."""
    config = tiny("tiny-lm", *modifiers).set(mesh=MeshLayout.Config(pipeline=2))
    made_by = type(config.learner.gradients.build()).__name__
    refused = rf"^mesh.pipeline=2: .*learner.gradients is {made_by}, .*2 times the work.*"
    with pytest.raises(ConfigError, match=rf"{refused}--with pipeline.*mesh.pipeline=1"):
        config.build().program()
    config.rules.rules |= {"batch": ("pipeline", "data", "fsdp", "expert")}
    config.build().program()  # the axis splits the batch now, so nothing is done twice


def test_a_pipeline_without_its_axis_accumulates() -> None:
    config = tiny("tiny-lm", "pipeline:microbatches=4")
    config.input.batch_size = 32
    assert "ppermute" not in str(config.build().program().traced.jaxpr)


@pytest.mark.parametrize(
    ("feature", "stages"),
    [("accumulate:steps=3", 1), ("pipeline:microbatches=3", 1), ("pipeline:microbatches=3", 2)],
)
def test_microbatches_that_do_not_divide_are_named(feature: str, stages: int) -> None:
    config = tiny("tiny-lm", feature).set(mesh=MeshLayout.Config(pipeline=stages))
    named = r"^learner.gradients.microbatches=3: the batch has 8 rows \(tokens\)"
    with pytest.raises(ConfigError, match=named):
        _ = config.build().program().traced


def test_a_pipeline_runs_along_its_axis() -> None:
    config = tiny("tiny-lm", "pipeline:microbatches=4").set(mesh=MeshLayout.Config(pipeline=2))
    config.input.batch_size = 16
    assert "ppermute" in str(config.build().program().traced.jaxpr)
