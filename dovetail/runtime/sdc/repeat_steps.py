"""Computes a step twice, and compares the results bit for bit.

The second computation runs the same program with the devices rolled by one, because a device with
a lasting fault would repeat its error on its own work. The program and its logical order are the
same, so reductions add in the same order.

Invariants:
- Training continues with the result of the ordinary step, on the devices in their own order.
- At most two states are on the devices at a time: the second computation ends before the step
  begins, and from then on the inputs are kept to find the device at fault.
- All processes compare the same digests, so they reach the same verdict.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dovetail.config import Component, ConfigError
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.digest import named_leaves, read_shard_digests, shard_digests
from dovetail.runtime.faults import CorruptResult
from dovetail.runtime.sdc.blame import Results, Verdict, different, find_device, odd_replicas
from dovetail.runtime.sdc.reordering import Order, copy_in_order, mesh_in_order, rolled

Step = Callable[..., Any]
"""A compiled step: takes state, batch and hyperparameters; returns the new state and a report."""


class RepeatSteps(Component):
    """Repeats some steps on other devices, and compares replicas. It is off by default.

    A check takes the time of two steps, and memory for a second state. The first check compiles
    the step for the other order of devices.
    """

    class Config(Component.Config["RepeatSteps"]):
        """The interval between checks, and the order of devices.

        Attributes:
            every: the number of steps between checks; None never checks.
            roll: rolls the devices in the second computation. Without it, a lasting fault is not
                noticed, only one that does not repeat itself.
            deadline_seconds: how long the processes of a run wait for each other.
        """

        every: int | None = None
        roll: bool = True
        deadline_seconds: int = 600

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("every", "deadline_seconds"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise ConfigError(f"step_check.{name}: expected 1 or more, got {value}.")
        self._every, self._roll, self._seconds = config.every, config.roll, config.deadline_seconds
        self._agreement = Agreement()
        self._compile_on: Callable[[Mesh], Step] | None = None
        self._compiled: dict[Order, Step] = {}
        self._verified = self._rounds = 0

    def start(self, step: int, agreement: Agreement, compile_on: Callable[[Mesh], Step]) -> None:
        """Starts to train after a step.

        Args:
            step: the step of the state that training continues from.
            agreement: the processes of the run.
            compile_on: compiles the step for another mesh.
        """
        self._verified, self._agreement, self._compile_on = step, agreement, compile_on

    def due(self, step: int) -> bool:
        """Says whether to check a step."""
        return self._every is not None and step % self._every == 0

    def run(self, step: int, train_step: Step, arguments: Any) -> tuple[Any, CorruptResult | None]:
        """Runs a step, and checks it; returns its result, and the fault or None.

        A result that differs from its repeat is deleted.
        """
        state, *_ = arguments
        mesh = jax.tree.leaves(state)[0].sharding.mesh
        # The step itself may spread the error of one copy to all of them.
        digests = self._gather_rows(read_shard_digests(shard_digests(state)))
        before = self._compare_replicas(step, f"Before step {step}", state, digests)
        result, fault = self._run_twice(step, train_step, arguments, mesh)
        if fault is None or not fault.persists:
            fault = before or fault  # a lasting fault says more
        self._verified = self._verified if fault else step
        return result, fault

    def _run_twice(
        self, step: int, train_step: Step, arguments: Any, mesh: Mesh
    ) -> tuple[Any, CorruptResult | None]:
        own = tuple(range(mesh.size))
        order = rolled(mesh) if self._roll else own
        self._compiled[own] = train_step
        second = self._repeat(arguments, order, mesh)
        kept = copy_in_order(arguments, own)
        result = train_step(*arguments)
        first = self._digests(result, mesh)
        if first == second:
            _delete(kept)
            return result, self._compare_replicas(step, f"After step {step}", result[0], first)
        _delete(result[0])  # frees memory for more repeats
        verdict = find_device(first, second, order, lambda to: self._repeat(kept, to, mesh))
        where = _first_difference(first, second, result[0])
        what = f"Step {step} gave two results from the same state and batch; {where} differs."
        return result, self._event(step, what, verdict, mesh)

    def _repeat(self, arguments: Any, order: Order, mesh: Mesh) -> Results:
        """Computes the step on the devices in an order, from copied arguments."""
        there = mesh_in_order(mesh, order)
        if order not in self._compiled:
            assert self._compile_on is not None, "start() comes first"
            self._compiled[order] = self._compile_on(there)
        result = self._compiled[order](*copy_in_order(arguments, order))
        digests = self._digests(result, there)
        _delete(result)
        return digests

    def _digests(self, result: Any, mesh: Mesh) -> Results:
        """Returns the digests of a new state and its report, of each position of the mesh."""
        state, report = result
        positions = {device: i for i, device in enumerate(mesh.devices.flat)}
        mine = read_shard_digests(shard_digests(state))
        for device, digest in _report_digests(report).items():
            mine[positions[device]].append(digest)
        return self._gather_rows(mine)

    def _gather_rows(self, mine: dict[int, list[str]]) -> Results:
        rows = [row for answer in self._gather(list(mine.items())) for row in answer]
        return [tuple(digests) for _, digests in sorted(rows)]

    def _compare_replicas(
        self, step: int, when: str, state: Any, digests: Results
    ) -> CorruptResult | None:
        """Compares the copies of every shard that several devices have."""
        mesh = jax.tree.leaves(state)[0].sharding.mesh
        odd: list[tuple[str, tuple[int, ...]]] = []
        for number, (path, leaf) in enumerate(named_leaves(state).items()):
            groups: dict[str, dict[int, str]] = {}
            indices = leaf.sharding.devices_indices_map(leaf.shape)
            for position, device in enumerate(mesh.devices.flat):
                copies = groups.setdefault(str(indices[device]), {})
                copies[position] = digests[position][number]
            odd += [(path, devices) for each in groups.values() if (devices := odd_replicas(each))]
        if not odd:
            return None
        path, devices = min(odd, key=lambda found: len(found[1]))
        why = "its copy differs from the majority"
        if len(devices) > 1:
            why = "no copy has a majority"
        what = f"{when}, the copies of {path} differ from device to device."
        return self._event(step, what, Verdict(devices, False, why), mesh)

    def _event(self, step: int, what: str, verdict: Verdict, mesh: Mesh) -> CorruptResult:
        names = device_names(mesh, self._gather(socket.gethostname()))
        devices = tuple(names[i] for i in verdict.devices)
        who = "It is unknown which device is at fault"
        if len(devices) == 1:
            who = f"{devices[0]} is at fault"
        elif devices:
            who = f"One of these devices is at fault, {' or '.join(devices)}"
        message = f"{what} {who}: {verdict.why}."
        return CorruptResult(step, message, devices, verdict.persists, self._verified)

    def _gather(self, value: Any) -> list[Any]:
        self._rounds += 1
        return self._agreement.gather(f"step check {self._rounds}", value, self._seconds)


def device_names(mesh: Mesh, hosts: list[str]) -> list[str]:
    """Returns a readable name of each device of a mesh, given the hosts of the processes."""

    def name(device: jax.Device) -> str:
        process = device.process_index
        return f"{device.platform}:{device.id} (process {process} on {hosts[process]})"

    return [name(device) for device in mesh.devices.flat]


def _report_digests(report: Any) -> dict[jax.Device, str]:
    """Returns a digest of the report on each device of this process; it is small."""
    hashes: dict[jax.Device, Any] = {}
    for leaf in jax.tree.leaves(report):
        for shard in leaf.addressable_shards:
            digest = hashes.setdefault(shard.device, hashlib.blake2b(digest_size=8))
            digest.update(np.asarray(shard.data).tobytes())
    return {device: digest.hexdigest() for device, digest in hashes.items()}


def _first_difference(first: Results, second: Results, state: Any) -> str:
    names = [*named_leaves(state), "the report"]
    position = different(first, second)[0]
    pairs = zip(first[position], second[position], names, strict=True)
    return next(name for one, other, name in pairs if one != other)


def _delete(tree: Any) -> None:
    jax.tree.map(lambda leaf: leaf.delete(), tree)
