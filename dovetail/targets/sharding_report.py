"""The sharding of every array, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.utils import format_bytes, format_table

if TYPE_CHECKING:
    from dovetail.targets.sharding import ArraySharding, ExperimentSharding

_GROUPS = ("parameters", "optimizer", "averages", "variables", "batch", "activations")


def sharding_report(sharding: ExperimentSharding) -> str:
    """Returns every array with its shard, the memory of a device, and a warning if there is one."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in sharding.mesh.items()) or "one device"
    machine = sharding.machine
    rows = [(group, format_bytes(total)) for group, total in sharding.totals().items()]
    rows.append(("in all", sharding.verdict()))
    if elsewhere := sharding.host_bytes():
        rows.append(("on the host", f"{format_bytes(elsewhere)} for each device"))
    warning = sharding.warning()
    return "\n".join(
        [
            f"{sharding.experiment} on {machine.name} ({machine}): mesh {mesh}",
            *_arrays(sharding),
            "",
            format_table(rows),
            *([] if warning is None else [warning]),
        ]
    )


def logical(array: ArraySharding) -> str:
    """Formats the shape with its logical axes: `layers:32 embed:4096`."""
    pairs = zip(array.axes, array.shape, strict=True)
    return " ".join(f"{axis or '-'}:{length}" for axis, length in pairs) or "scalar"


def physical(array: ArraySharding) -> str:
    """Formats which logical axes are sharded over which mesh axes."""
    pairs = zip(array.axes, array.mesh_axes, strict=True)
    return ", ".join(f"{axis} over {' x '.join(names)}" for axis, names in pairs if names) or (
        "replicated" if array.devices > 1 else "unsharded"
    )


def _arrays(sharding: ExperimentSharding) -> list[str]:
    """Returns the lines of all arrays by group; states like their parameter are below it."""
    states_by_path = sharding.states_like_parameters()
    shown = {id(state) for states in states_by_path.values() for state in states}
    totals, lines = sharding.totals(), list[str]()
    for group in _GROUPS:
        arrays = [array for array in sharding.group(group) if id(array) not in shown]
        if arrays:
            size = f", {format_bytes(totals[group])} per device" if group in totals else ""
            lines += ["", f"{group}{size}"]
        for array in arrays:
            lines += _array(
                array, states_by_path.get(array.path, []) if group == "parameters" else []
            )
    return lines


def _array(array: ArraySharding, states: Sequence[ArraySharding]) -> list[str]:
    local = "x".join(map(str, array.local_shape)) or "scalar"
    # "replicated" already says that every device has a copy.
    copies = f", {array.copies} copies" if 1 < array.copies < array.devices else ""
    lines = [
        f"  {array.path or '(model)'}  {logical(array)}  {array.dtype}",
        f"      {physical(array)}: {local}, {_bytes([array])}{copies}",
    ]
    if states:
        names = ", ".join(state.path.removesuffix(f"/{array.path}") for state in states)
        lines.append(f"      optimizer: {names} sharded like it, {_bytes(states)}")
    return lines


def _bytes(arrays: Sequence[ArraySharding]) -> str:
    """Formats the bytes of arrays in one memory space."""
    total = format_bytes(sum(array.bytes_per_device for array in arrays))
    on_device = arrays[0].memory is None
    return f"{total} per device" if on_device else f"{total} on the host for each device"
