"""Layouts: every array with its axes and its share of a device, on machines that are not there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dovetail.config import ConfigError, apply_modifier
from dovetail.experiments import find_experiment
from dovetail.kernels import SlowKernelError
from dovetail.parallel import MeshLayout
from dovetail.targets import Layout, apply_target, lay_out, parse_target


def tiny(**mesh: int) -> Any:
    config = find_experiment("llama2-7b").tiny()
    config.mesh = MeshLayout.Config(**mesh)
    return config


@pytest.fixture(scope="module")
def layout() -> Layout:
    return lay_out(tiny(data=2, fsdp=4), parse_target("cpu-8"))


def test_it_agrees_with_what_is_compiled(layout: Layout) -> None:
    """The tests have eight devices; a compiled step takes the state and a batch."""
    config = tiny(data=2, fsdp=4)
    memory = config.build().program().lowered.compile().memory_analysis()
    # `halted_at` and the number of the step are not listed.
    assert sum(layout.totals().values()) == pytest.approx(memory.argument_size_in_bytes, abs=64)


def test_stacked_parameters_show_their_layers(layout: Layout) -> None:
    weight = next(laid for laid in layout.group("parameters") if "query/weight" in laid.path)
    assert weight.axes == ("stage", "embed", "heads")
    assert weight.split == ((), ("fsdp",), ())
    assert weight.local_shape == (weight.shape[0], weight.shape[1] // 4, weight.shape[2])
    assert weight.copies == 2, "each slice of data has one"
    assert weight.bytes_per_device * 4 == 4 * weight.shape[0] * weight.shape[1] * weight.shape[2]


def test_optimizer_state_lies_as_its_parameter(layout: Layout) -> None:
    parameters = {laid.path: laid for laid in layout.group("parameters")}
    owned = [laid for laid in layout.group("optimizer") if laid.owner]
    assert len(owned) == 2 * len(parameters), "two moments each"
    for laid in owned:
        owner = parameters[laid.owner]
        assert (laid.axes, laid.local_shape) == (owner.axes, owner.local_shape)


def test_the_main_activations_are_there(layout: Layout) -> None:
    axes = {laid.axes for laid in layout.group("activations")}
    assert ("batch", "stream", "embed") in axes
    assert ("batch", "sequence", "heads", None) in axes
    assert ("batch", "vocab") in axes, "a chunk of logits"
    stream = next(a for a in layout.group("activations") if a.axes[-1] == "embed")
    assert stream.split[0] == ("data", "fsdp")


def test_buffers_of_experts_are_there() -> None:
    config = apply_modifier(apply_modifier(tiny(expert=4), "moe:num_experts=4"), "capacity")
    axes = {laid.axes for laid in lay_out(config, parse_target("cpu-4")).group("activations")}
    assert ("expert", "batch", None, None) in axes


def test_rows_of_dropless_experts_are_told_whole_and_by_device() -> None:
    """Inside of a shard_map a layer sees one device's part, which must not be split again."""
    config = apply_modifier(tiny(data=2, fsdp=2, model=2), "moe:num_experts=4,top_k=2")
    batch, length = config.input.batch_size, config.input.sequence_length
    layout = lay_out(config, parse_target("cpu-8"))
    inside = [a for a in layout.group("activations") if a.path.endswith("layer/feed_forward")]
    rows = next(a for a in inside if a.axes == ("batch", "sequence", "embed"))
    width = rows.shape[2]
    assert rows.shape == (batch, 2 * length, width), "each token is there for both its experts"
    assert rows.local_shape == (batch // 4, 2 * length, width)
    assert (rows.split[0], rows.copies) == (("data", "fsdp"), 2)
    hidden = next(a for a in layout.group("activations") if a.axes == ("batch", "sequence", "mlp"))
    assert hidden.split == (("data", "fsdp"), (), ("model",)), "the rest is XLA's to split"
    whole, part = hidden.shape, hidden.local_shape
    assert (part[0] * 4, part[1], part[2] * 2) == whole
    assert hidden.copies == 1


def test_rows_that_come_from_other_devices_are_told() -> None:
    config = apply_modifier(tiny(fsdp=2, expert=4), "moe:num_experts=4,top_k=2")
    batch, length = config.input.batch_size, config.input.sequence_length
    layout = lay_out(config, parse_target("cpu-8"))
    arrays = layout.group("activations")
    rows = next(a for a in arrays if a.path.endswith("feed_forward") and a.local_shape[0] == 1)
    # Room for the worst case: all rows of the four devices that share the experts.
    assert rows.local_shape[:2] == (1, 4 * 2 * length * batch // 8)
    assert rows.shape[:2] == (8, rows.local_shape[1])


@pytest.mark.filterwarnings("ignore::dovetail.kernels.SlowKernelWarning")  # sinks on a GPU
@pytest.mark.parametrize("target", ["tpu-v5p-512", "gpu-h100-256"])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_published_mixtures_lie_on_large_machines(name: str, target: str) -> None:
    fitted = apply_target(find_experiment(name).config(), target)
    layout = lay_out(fitted.config, fitted.machine)
    for laid in layout.arrays:
        parts = [math.prod(layout.mesh[axis] for axis in names) for names in laid.split]
        pairs = zip(laid.local_shape, parts, strict=True)
        assert tuple(length * count for length, count in pairs) == laid.shape


def test_what_is_replicated_is_told() -> None:
    layout = lay_out(tiny(data=-1, fsdp=1), parse_target("cpu-8"))
    whole = layout.replicated()
    assert {laid.group for laid in whole} == {"parameters", "optimizer"}
    sizes = [laid.bytes_per_device for laid in whole]
    assert sizes == sorted(sizes, reverse=True)
    alone = lay_out(tiny(), parse_target("cpu"))
    assert alone.replicated() == [], "on one device nothing is held twice"


def test_a_machine_that_is_not_there_is_no_matter() -> None:
    config = find_experiment("llama2-7b").config()
    config.mesh = MeshLayout.Config(data=-1, fsdp=64)
    layout = lay_out(config, parse_target("tpu-v5p-512"))
    assert layout.mesh == {"data": 4, "fsdp": 64}
    parameters = layout.totals()["parameters"]
    assert parameters == pytest.approx(4 * 6738415616 / 64, rel=0.001)
    assert layout.totals()["optimizer"] == pytest.approx(2 * parameters, rel=0.001)


def test_settings_of_kernels_are_in_force() -> None:
    """What a run would refuse, its layout refuses too."""
    config = tiny(fsdp=8)
    config.kernels.prefer = {"attention": "splash"}
    with pytest.raises(ConfigError, match="it runs on tpu only"):
        lay_out(config, parse_target("cpu-8"))
    config = apply_modifier(tiny(fsdp=8), "soft-cap")
    config.input.sequence_length = 512
    config.kernels.strict = True
    with pytest.raises(SlowKernelError, match="'blockwise' implementation runs on gpu"):
        lay_out(config, parse_target("gpu-h100-8"))


def test_what_lies_with_the_host_is_no_matter_of_the_device() -> None:
    config = apply_modifier(tiny(fsdp=4), "offload-optimizer")
    layout = lay_out(config, parse_target("tpu-v5e-4"), with_activations=False)
    plain = lay_out(tiny(fsdp=4), parse_target("tpu-v5e-4"), with_activations=False)
    assert plain.elsewhere() == 0
    assert layout.totals() | {"optimizer": 0} == plain.totals() | {"optimizer": 0}
    left = layout.totals().get("optimizer", 0)
    assert left + layout.elsewhere() == plain.totals()["optimizer"]
    assert left <= 8, "single numbers stay"
    config.mesh = MeshLayout.Config(data=-1, fsdp=1)
    whole = lay_out(config, parse_target("tpu-v5e-4"), with_activations=False).replicated()
    assert {laid.group for laid in whole} == {"parameters"}


def test_maps_out_of_a_latent_vector_are_split() -> None:
    config = find_experiment("deepseek-v3").config()
    config.mesh = MeshLayout.Config(fsdp=512)
    layout = lay_out(config, parse_target("tpu-v5p-1024"), with_activations=False)
    assert max(laid.bytes_per_device for laid in layout.replicated()) < 1e6, "norms alone"


def test_several_slices_need_an_axis_that_crosses() -> None:
    config = tiny(data=1, fsdp=8)
    config.input.batch_size = 8
    with pytest.raises(ConfigError, match=r"expected data \(or pipeline\) to be a multiple of 2"):
        lay_out(config, parse_target("2xtpu-v5e-4"))
    config.mesh = MeshLayout.Config(data=2)
    assert lay_out(config, parse_target("2xtpu-v5e-4")).mesh == {"data": 2, "fsdp": 4}


def test_what_does_not_divide_is_named() -> None:
    config = tiny(fsdp=5)
    with pytest.raises(ConfigError, match=r"input.batch_size .* has size 8, .*into 5 parts"):
        lay_out(config, parse_target("cpu-5"))
    config.input.batch_size = 5
    named = r"^decoder/\S+: axis \d \('embed'\) has size \d+, .*into 5 parts.*would divide"
    with pytest.raises(ConfigError, match=named):
        lay_out(config, parse_target("cpu-5"))
