"""The sharding of every array of an experiment, without devices."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dovetail.config import ConfigError, apply_modifier, apply_overrides
from dovetail.experiments import find_experiment
from dovetail.kernels import SlowKernelError
from dovetail.parallel import MeshLayout
from dovetail.targets import (
    ExperimentSharding,
    Machine,
    apply_target,
    experiment_sharding,
    machine_program,
    parse_target,
)


def tiny(**mesh: int) -> Any:
    config = find_experiment("llama2-7b").tiny()
    config.mesh = MeshLayout.Config(**mesh)
    return config


def sharding_of(config: Any, machine: Machine, **options: bool) -> ExperimentSharding:
    return experiment_sharding(machine_program(config.build(), machine), machine, **options)


@pytest.fixture(scope="module")
def sharding() -> ExperimentSharding:
    return sharding_of(tiny(data=2, fsdp=4), parse_target("cpu-8"))


def test_state_and_batch_are_the_arguments_of_the_compiled_step(
    sharding: ExperimentSharding,
) -> None:
    """The tests have eight devices; a compiled step takes the state and a batch."""
    config = tiny(data=2, fsdp=4)
    memory = config.build().program().lowered.compile().memory_analysis()
    # `halted_at` and the number of the step are not listed.
    assert sum(sharding.totals().values()) == pytest.approx(memory.argument_size_in_bytes, abs=64)


def test_stacked_parameters_show_their_layers(sharding: ExperimentSharding) -> None:
    weight = next(array for array in sharding.group("parameters") if "query/weight" in array.path)
    assert weight.axes == ("stage", "embed", "heads")
    assert weight.mesh_axes == ((), ("fsdp",), ())
    assert weight.local_shape == (weight.shape[0], weight.shape[1] // 4, weight.shape[2])
    assert weight.copies == 2, "each slice of data has one"
    assert weight.bytes_per_device * 4 == 4 * weight.shape[0] * weight.shape[1] * weight.shape[2]


def test_the_facts_are_json_with_every_array(sharding: ExperimentSharding) -> None:
    facts = json.loads(json.dumps(sharding.facts()))
    assert (facts["target"], facts["mesh"]) == ("cpu-8", {"data": 2, "fsdp": 4})
    assert [array["bytes_per_device"] for array in facts["arrays"]] == [
        array.bytes_per_device for array in sharding.arrays
    ]


def test_optimizer_state_is_sharded_like_its_parameter(sharding: ExperimentSharding) -> None:
    parameters = {array.path: array for array in sharding.group("parameters")}
    owned = [array for array in sharding.group("optimizer") if array.owner]
    assert len(owned) == 2 * len(parameters), "two moments each"
    for array in owned:
        owner = parameters[array.owner]
        assert (array.axes, array.local_shape) == (owner.axes, owner.local_shape)


def test_the_main_activations_are_listed(sharding: ExperimentSharding) -> None:
    axes = {array.axes for array in sharding.group("activations")}
    assert ("batch", "residual_sequence", "embed") in axes
    assert ("batch", "sequence", "heads", None) in axes
    assert ("batch", "vocab") in axes, "a chunk of logits"
    stream = next(a for a in sharding.group("activations") if a.axes[-1] == "embed")
    assert stream.mesh_axes[0] == ("data", "fsdp")


def test_expert_buffers_are_listed() -> None:
    config = apply_modifier(apply_modifier(tiny(expert=4), "moe:num_experts=4"), "capacity")
    axes = {array.axes for array in sharding_of(config, parse_target("cpu-4")).group("activations")}
    assert ("expert", "batch", None, None) in axes


def test_rows_of_dropless_experts_have_global_and_local_shapes() -> None:
    """Inside a shard_map a layer sees one device's shard, which must not be sharded again."""
    config = apply_modifier(tiny(data=2, fsdp=2, model=2), "moe:num_experts=4,top_k=2")
    batch, length = config.input.batch_size, config.input.sequence_length
    sharding = sharding_of(config, parse_target("cpu-8"))
    inside = [a for a in sharding.group("activations") if a.path.endswith("layer/feed_forward")]
    rows = next(a for a in inside if a.axes == ("batch", "sequence", "embed"))
    width = rows.shape[2]
    assert rows.shape == (batch, 2 * length, width), "each token is there for both its experts"
    assert rows.local_shape == (batch // 4, 2 * length, width)
    assert (rows.mesh_axes[0], rows.copies) == (("data", "fsdp"), 2)
    hidden = next(
        a for a in sharding.group("activations") if a.axes == ("batch", "sequence", "mlp")
    )
    assert hidden.mesh_axes == (("data", "fsdp"), (), ("model",)), "XLA shards the rest"
    local = hidden.local_shape
    assert (local[0] * 4, local[1], local[2] * 2) == hidden.shape
    assert hidden.copies == 1


def test_rows_from_other_devices_are_listed() -> None:
    config = apply_modifier(tiny(fsdp=2, expert=4), "moe:num_experts=4,top_k=2")
    batch, length = config.input.batch_size, config.input.sequence_length
    sharding = sharding_of(config, parse_target("cpu-8"))
    arrays = sharding.group("activations")
    rows = next(a for a in arrays if a.path.endswith("feed_forward") and a.local_shape[0] == 1)
    # Capacity for the worst case: all rows of the four devices that share the experts.
    assert rows.local_shape[:2] == (1, 4 * 2 * length * batch // 8)
    assert rows.shape[:2] == (8, rows.local_shape[1])


@pytest.mark.filterwarnings("ignore::dovetail.kernels.SlowKernelWarning")  # sinks on a GPU
@pytest.mark.parametrize("target", ["tpu-v5p-512", "gpu-h100-256"])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_published_mixtures_divide_over_large_machines(name: str, target: str) -> None:
    fitted = apply_target(find_experiment(name).config(), target)
    sharding = sharding_of(fitted.config, fitted.machine)
    for array in sharding.arrays:
        shards = [math.prod(sharding.mesh[axis] for axis in names) for names in array.mesh_axes]
        pairs = zip(array.local_shape, shards, strict=True)
        assert tuple(length * count for length, count in pairs) == array.shape


def test_replicated_arrays_are_listed() -> None:
    sharding = sharding_of(tiny(data=-1, fsdp=1), parse_target("cpu-8"))
    replicated = sharding.replicated()
    assert {array.group for array in replicated} == {"parameters", "optimizer"}
    sizes = [array.bytes_per_device for array in replicated]
    assert sizes == sorted(sizes, reverse=True)
    alone = sharding_of(tiny(), parse_target("cpu"))
    assert alone.replicated() == [], "on one device nothing is replicated"


def test_no_device_of_the_machine_is_needed() -> None:
    config = find_experiment("llama2-7b").config()
    config.mesh = MeshLayout.Config(data=-1, fsdp=64)
    sharding = sharding_of(config, parse_target("tpu-v5p-512"))
    assert sharding.mesh == {"data": 4, "fsdp": 64}
    parameters = sharding.totals()["parameters"]
    assert parameters == pytest.approx(4 * 6738415616 / 64, rel=0.001)
    assert sharding.totals()["optimizer"] == pytest.approx(2 * parameters, rel=0.001)


def test_kernel_settings_apply() -> None:
    """An error of a run is an error here too."""
    config = tiny(fsdp=8)
    config.kernels.prefer = {"attention": "splash"}
    with pytest.raises(ConfigError, match="it runs on tpu only"):
        sharding_of(config, parse_target("cpu-8"))
    config = apply_modifier(tiny(fsdp=8), "soft-cap")
    config.input.sequence_length = 512
    config.kernels.strict = True
    with pytest.raises(SlowKernelError, match="'blockwise' implementation runs on gpu"):
        sharding_of(config, parse_target("gpu-h100-8"))


def test_offloaded_state_does_not_count_for_the_device() -> None:
    config = apply_modifier(tiny(fsdp=4), "offload-optimizer")
    sharding = sharding_of(config, parse_target("tpu-v5e-4"), with_activations=False)
    plain = sharding_of(tiny(fsdp=4), parse_target("tpu-v5e-4"), with_activations=False)
    assert plain.host_bytes() == 0
    assert sharding.totals() | {"optimizer": 0} == plain.totals() | {"optimizer": 0}
    left = sharding.totals().get("optimizer", 0)
    assert left + sharding.host_bytes() == plain.totals()["optimizer"]
    assert left <= 8, "scalars stay"
    config.mesh = MeshLayout.Config(data=-1, fsdp=1)
    replicated = sharding_of(config, parse_target("tpu-v5e-4"), with_activations=False).replicated()
    assert {array.group for array in replicated} == {"parameters"}


def test_latent_projections_are_sharded() -> None:
    config = find_experiment("deepseek-v3").config()
    config.mesh = MeshLayout.Config(fsdp=512)
    sharding = sharding_of(config, parse_target("tpu-v5p-1024"), with_activations=False)
    assert max(array.bytes_per_device for array in sharding.replicated()) < 1e6, "norms alone"


def test_several_slices_need_a_data_or_pipeline_axis() -> None:
    config = tiny(data=1, fsdp=8)
    config.input.batch_size = 8
    with pytest.raises(ConfigError, match=r"expected data \(or pipeline\) to be a multiple of 2"):
        sharding_of(config, parse_target("2xtpu-v5e-4"))
    config.mesh = MeshLayout.Config(data=2)
    assert sharding_of(config, parse_target("2xtpu-v5e-4")).mesh == {"data": 2, "fsdp": 4}


def test_an_uneven_axis_is_named() -> None:
    config = tiny(fsdp=5)
    with pytest.raises(ConfigError, match=r"input.batch_size .* has size 8, .*into 5 shards"):
        sharding_of(config, parse_target("cpu-5"))
    config.input.batch_size = 5
    named = r"^decoder/\S+: axis \d \('embed'\) has size \d+, .*into 5 shards.*would divide"
    with pytest.raises(ConfigError, match=named):
        sharding_of(config, parse_target("cpu-5"))


def test_a_parameter_that_a_rule_names_by_path_is_shown_so_with_its_state() -> None:
    config = tiny(data=2, fsdp=2, model=2)
    weight = "decoder/embedding/weight"
    text = f'rules.parameters={{"{weight}": ("data", None)}}'
    config = apply_overrides(config, [text])
    found = sharding_of(config, parse_target("cpu-8"), with_activations=False)
    arrays = [array for array in found.arrays if weight in (array.path, array.owner)]
    assert len(arrays) == 3, "the parameter and two moments"
    assert {array.mesh_axes for array in arrays} == {(("data",), ())}
    others = [array for array in found.group("parameters") if array.path != weight]
    plain = sharding_of(
        tiny(data=2, fsdp=2, model=2), parse_target("cpu-8"), with_activations=False
    )
    assert others == [array for array in plain.group("parameters") if array.path != weight]
