"""The sharding of every array, as an HTML page."""

from __future__ import annotations

from dovetail.parallel import MESH_AXES
from dovetail.targets.sharding import STATE_GROUPS, ArraySharding, ExperimentSharding
from dovetail.targets.sharding_report import physical
from dovetail.utils import format_bytes, plural
from dovetail.utils.html import Html, bar, colour, join, page, table, tag

_STYLE = """
table { min-width: 44rem; }
.axis { display: inline-block; border: 1px solid var(--line); border-radius: 3px;
  padding: 0 .35rem; margin: 0 .15rem .15rem 0; background: var(--soft); white-space: nowrap; }
.warning { border-left: 4px solid var(--bad); padding-left: .7rem; }
"""

_GROUPS = {
    "parameters": "Parameters",
    "optimizer": "Optimizer state",
    "averages": "Averages",
    "variables": "Variables",
    "batch": "Batch",
    "activations": "Activations that layers name",
}

COLOURS = {name: number for number, name in enumerate((*MESH_AXES, *STATE_GROUPS))}
"""The colour of each mesh axis and of each group of arrays."""


def sharding_page(sharding: ExperimentSharding) -> str:
    """Returns a complete page."""
    mesh: list[str] = [_axis(axis, length, by=axis) for axis, length in sharding.mesh.items()]
    text = sharding.warning()
    return page(
        f"{sharding.experiment} on {sharding.machine.name}",
        tag("p", f"{sharding.machine}. Mesh: ", *(mesh or ["one device"])),
        *_memory(sharding),
        *([tag("p", text, class_="warning")] if text is not None else []),
        *(
            element
            for group, heading in _GROUPS.items()
            for element in _table(heading, sharding.group(group))
        ),
        style=_STYLE,
    )


def _memory(sharding: ExperimentSharding) -> list[Html]:
    """Draws the share of a device's memory that each group takes."""
    limit, totals = sharding.machine.memory_per_device, sharding.totals()
    legend = [
        tag(
            "span",
            tag("span", class_="key", style=f"background:{colour(COLOURS.get(group))}"),
            f"{group} {format_bytes(total)}, ",
        )
        for group, total in totals.items()
    ]
    host = sharding.host_bytes()
    more = f" On the host: {format_bytes(host)} for each device." if host else ""
    return [
        bar(
            (f"{group}: {format_bytes(total)}", total / limit, COLOURS[group])
            for group, total in totals.items()
        ),
        tag("p", *legend, f"{sharding.verdict()}.{more}"),
    ]


def _table(heading: str, arrays: list[ArraySharding]) -> list[Html]:
    if not arrays:
        return []
    header = ("array", "axes", "on each device", "bytes per device")
    return [tag("h2", heading), table([_row(array) for array in arrays], header, numbers=(3,))]


def _row(array: ArraySharding) -> list[str]:
    # A long path breaks after its slashes.
    pieces = (array.path or "(model)").split("/")
    path = [Html("/<wbr>") if odd else piece for piece in pieces for odd in (0, 1)][:-1]
    axes = [
        _axis(
            axis or "–",
            length,
            by=names[0] if names else None,
            over=f" / {' × '.join(names)}" if names else "",
        )
        for axis, length, names in zip(array.axes, array.shape, array.mesh_axes, strict=True)
    ]
    local = " × ".join(map(str, array.local_shape)) or "scalar"
    copies = f", {plural(array.copies, 'copy', 'copies')}" if array.copies > 1 else ""
    host = [] if array.memory is None else [Html("<br>"), "on the host"]
    return [
        tag("code", *path),
        join(axes),
        tag(
            "span",
            f"{local} {array.dtype}{copies}",
            class_="bad" if array.is_replicated else None,
            title=physical(array),
        ),
        join([format_bytes(array.bytes_per_device), *host]),
    ]


def _axis(name: str, length: int, by: str | None, over: str = "") -> Html:
    """Draws an axis, with a border in the colour of the mesh axis that shards it."""
    border = colour(COLOURS.get(by) if by is not None else None)
    return tag(
        "span",
        f"{name} ",
        tag("b", str(length)),
        over,
        class_="axis",
        style=f"border-color:{border}",
    )
