"""`train --dry-run`: prints what a run would take."""

from __future__ import annotations

from dovetail.cli.output import print_json
from dovetail.run import DryRun, RemoteDryRun
from dovetail.run.dry_runs import RunSize
from dovetail.targets import Machine
from dovetail.utils import format_bytes, format_count, format_table, plural


def print_dry_run(found: DryRun | RemoteDryRun, as_json: bool) -> None:
    """Prints a dry run as a table, or as JSON."""
    if as_json:
        print_json(found.facts())
        return
    own = _rows(found) if isinstance(found, DryRun) else _remote_rows(found)
    print(format_table([*_size_rows(found.size), *own]))


def _rows(found: DryRun) -> list[tuple[str, str]]:
    return [
        ("memory per device", f"{format_bytes(found.argument_bytes)} of state and batch"),
        ("", f"{format_bytes(found.temporary_bytes)} of temporaries"),
        *([("", str(found.memory))] if found.memory is not None else []),
        *_kernel_rows(found),
    ]


def _remote_rows(found: RemoteDryRun) -> list[tuple[str, str]]:
    state, limit = format_bytes(found.argument_bytes), found.machine.memory_per_device
    return [
        ("machine", str(found.machine)),
        ("mesh", ", ".join(f"{axis}={n}" for axis, n in found.size.mesh.items())),
        ("memory per device", f"{state} of state and batch, of {format_bytes(limit)}"),
        *([] if found.state_fits else [("", "does not fit, even without activations")]),
        ("price", _cost(found.machine)),
        *_kernel_rows(found),
        ("", "nothing was compiled: the machine is not here"),
    ]


def _cost(machine: Machine) -> str:
    price = machine.chip.price
    if price is None or machine.usd_per_hour is None:
        return "no public list price is known"
    return f"${machine.usd_per_hour:,.2f} per hour ({price.offer}, {price.date})"


def _kernel_rows(found: DryRun | RemoteDryRun) -> list[tuple[str, str]]:
    return [("kernel", line) for line in found.kernels]


def _size_rows(size: RunSize) -> list[tuple[str, str]]:
    steps = plural(size.steps, "step")
    items = [
        (f"{kind} per step", f"{format_count(count)}{_shape(count, *size.batch)} x {steps}")
        for kind, count in size.items_per_step.items()
    ]
    vocabulary = size.vocabulary
    return [
        ("parameters", format_count(size.parameters)),
        *items,
        *size.data.items(),
        *([] if vocabulary is None else [("vocabulary", f"{vocabulary:,} tokens")]),
        ("work per step", f"{format_count(size.step_flops)} FLOPs"),
    ]


def _shape(count: int, examples: int, length: int | None = None) -> str:
    """Says how a batch is made up, unless the number of its items says it."""
    if length is not None:
        return f" ({examples} sequences of {length})"
    return f" ({plural(examples, 'example')})" if count != examples else ""
