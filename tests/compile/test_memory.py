"""Host offload: offloaded arrays are in host memory in a step for TPUs."""

from __future__ import annotations

from typing import Any

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.parallel import MeshLayout
from dovetail.targets import tpu_topology
from tests.compile.programs import needs_tpu_compiler


def program(*modifiers: str) -> Any:
    """Returns the step of a tiny form over four chips."""
    config = find_experiment("llama2-7b").tiny()
    config.input.set(sequence_length=128, batch_size=8)
    for modifier in modifiers:
        config = apply_modifier(config, modifier)
    config.mesh = MeshLayout.Config(fsdp=4)
    return config.build().program(tuple(tpu_topology("v5e:2x2")))


@needs_tpu_compiler
def test_offloaded_arrays_are_in_host_memory() -> None:
    plain = program("remat").lowered.compile().memory_analysis()
    assert plain.host_temp_size_in_bytes == plain.host_argument_size_in_bytes == 0
    memory = program("offload", "offload-optimizer").lowered.compile().memory_analysis()
    assert memory.host_temp_size_in_bytes > 0
    # The host arrays are donated and updated in place, as on the device.
    assert memory.host_alias_size_in_bytes == memory.host_argument_size_in_bytes > 0
    assert memory.argument_size_in_bytes < plain.argument_size_in_bytes
