"""Restores the newest intact checkpoint of all tiers that all processes can read."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from dovetail.config import ConfigError, Error, StorageError
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.folders import CheckpointName, Entry
from dovetail.runtime.checkpoints.local.tier import LocalEntry, LocalTier
from dovetail.runtime.checkpoints.manifest import Manifest
from dovetail.runtime.checkpoints.resharding import reshard
from dovetail.runtime.checkpoints.stores import CheckpointStore
from dovetail.runtime.digest import digests, read_digests
from dovetail.runtime.failures import explain_failure
from dovetail.runtime.points import reach

_LOG = logging.getLogger("dovetail")

# Long enough for a transient failure of a network disk.
_SECONDS_BEFORE_RETRY = 0.5

_MAX_MESSAGE = 400


class Reading(NamedTuple):
    """The arrays that one process has read from a checkpoint.

    Attributes:
        arrays: the arrays by path, to be resharded and verified.
        like: their shapes and final shardings.
        build: makes the result from the resharded arrays.
    """

    arrays: Mapping[str, jax.Array]
    like: Mapping[str, jax.ShapeDtypeStruct]
    build: Callable[[Mapping[str, jax.Array]], Any]


Read = Callable[[Entry], Reading]


class Restorer:
    """Chooses and reads a checkpoint, together with the other processes."""

    def __init__(
        self,
        store: CheckpointStore,
        local: LocalTier | None,
        agreement: Agreement,
        suspects: frozenset[int],
        damaged: set[tuple[bool, CheckpointName]],
        on_try: Callable[[int], None],
        seconds: int,
        topics: str,
    ) -> None:
        """Takes the tiers; reads nothing yet.

        Args:
            store: the durable checkpoints.
            local: the local tier, if this process trains and has one.
            agreement: the processes of the run.
            suspects: steps that are tried last.
            damaged: checkpoints that could not be read before, and whether each is a local one;
                they are not tried again, and new ones are added.
            on_try: called with the step of a checkpoint before it is read.
            seconds: how long the processes wait for each other.
            topics: the prefix of the topics of their agreement.
        """
        self._store, self._local, self._agreement = store, local, agreement
        self._suspects, self._damaged, self._on_try = suspects, damaged, on_try
        self._seconds, self._topics = seconds, topics

    def newest_intact(self, read: Read) -> tuple[Entry, Any] | None:
        """Reads the newest intact checkpoint that all processes can read."""
        topics = self._topics
        reach("restore begins")
        try:
            entries = self._common_entries(topics)
            for number, entry in enumerate(entries):  # a step may be there several times
                self._on_try(entry.step)
                found = self._read_intact(entry, read, f"{topics}step {entry.step}, try {number}, ")
                if found is not None:
                    return entry, found[0]
                self._damaged.add(_key(entry))
        except (Error, OSError) as error:  # a mistake, or storage out of reach: not damage
            self._agreement.withdraw(topics, first_line(error))
            if isinstance(error, Error):
                raise
            raise StorageError(f"{self._store} cannot be read: {error}.") from error
        self._damaged.clear()  # somebody may restore one from a copy
        if steps := self._store.steps():
            raise ConfigError(
                f"No checkpoint in {self._store} can be read (steps {steps}). Restore one from a "
                "copy. To start again at step 0, choose another run folder, or remove this one."
            )
        return None

    def _common_entries(self, topics: str) -> list[Entry]:
        """Returns the checkpoints that all processes see, newest first, suspect ones last."""
        entries = self._store.entries()
        for entry in entries:
            if entry.problem is not None:
                _pass_over(entry.step, entry.problem)
        mine = {entry.name: entry for entry in entries if entry.problem is None}
        answers = self._gather(f"{topics}readable checkpoints", sorted(mine))
        others = [{CheckpointName(*name) for name in answer} for answer in answers]
        common = set(mine).intersection(*others)
        for index, names in enumerate(others):
            for name in sorted(set(mine) - names):
                _pass_over(name.step, f"process {index} does not see it")
        found = [entry for name, entry in mine.items() if name in common]
        if self._local is not None:
            found = [*self._local.entries(topics, self._gather), *found]  # local ones win ties
        found = [entry for entry in found if _key(entry) not in self._damaged]
        return sorted(found, key=lambda entry: (entry.step in self._suspects, -entry.step))

    def _read_intact(self, entry: Entry, read: Read, topic: str) -> tuple[Any] | None:
        """Returns the result of `read`, if it succeeded and is intact on all processes."""
        problem, reading = None, Reading({}, {}, dict)
        try:
            reading = _read_with_retry(read, entry)
        except Error:  # a mistake of the user, or storage out of reach: not damage
            raise
        except Exception as error:  # a damaged checkpoint can raise anything
            if (failure := explain_failure(error)) is not None:  # no memory, no peer
                raise failure from error
            problem = first_line(error)
        reach("restore read")
        # What follows is done by all processes together, so all must have their arrays.
        if self._agree_on_damage(entry, f"{topic}is read", problem):
            return None
        arrays = reshard(reading.arrays, reading.like)
        damaged = _damaged(entry.manifest, arrays)
        if self._agree_on_damage(entry, f"{topic}is intact", damaged):
            return None
        reach("restore verified")
        return (reading.build(arrays),)

    def _agree_on_damage(self, entry: Entry, topic: str, problem: str | None) -> bool:
        problems = self._gather(topic, problem)
        for index, text in enumerate(problems):
            if text is not None:
                where = "" if len(problems) == 1 else f"on process {index}: "
                _pass_over(entry.step, where + text)
                return True
        return False

    def read_arrays(self, entry: Entry, like: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Reads arrays of a checkpoint, of either tier, onto the devices."""
        assert entry.manifest is not None
        if isinstance(entry, LocalEntry) and self._local is not None:
            return self._local.read(entry, like)
        return self._store.read_arrays(entry, like)

    def _gather(self, topic: str, value: Any) -> list[Any]:
        return self._agreement.gather(topic, value, self._seconds)


def _key(entry: Entry) -> tuple[bool, CheckpointName]:
    return isinstance(entry, LocalEntry), entry.name


def first_line(error: Exception) -> str:
    """Returns an error's type and the first line of its message."""
    lines = str(error).strip().splitlines() or ["no message"]
    line = re.split(r" \[tensorstore_spec|\. See full TensorStore", lines[0])[0]  # very long
    return f"{type(error).__name__}: {line[:_MAX_MESSAGE]}"


def _pass_over(step: int, problem: str) -> None:
    _LOG.warning(
        "The checkpoint of step %d cannot be used (%s); trying the one before it.", step, problem
    )


def _damaged(manifest: Manifest | None, arrays: Mapping[str, jax.Array]) -> str | None:
    """Returns what differs from the digests of a manifest, or None."""
    if manifest is None or not arrays:
        return None
    found = read_digests(digests(arrays))
    wrong = sorted(p for p, digest in found.items() if digest.sums != manifest.arrays[p].digest)
    if not wrong:
        return None
    expected, got = manifest.arrays[wrong[0]].digest, found[wrong[0]].sums
    more = f", and {len(wrong) - 1} more" if wrong[1:] else ""
    return f"{wrong[0]} is damaged: its digest is {got}, expected {expected}{more}"


def _read_with_retry(read: Read, entry: Entry) -> Reading:
    """Retries a failed read once: failures of a network disk can be transient."""
    try:
        return read(entry)
    except Exception as error:  # a damaged checkpoint raises it again
        if isinstance(error, Error) and not isinstance(error, StorageError):
            raise
        _LOG.warning(
            "Reading the checkpoint of step %d failed (%s); retrying once.",
            entry.step,
            first_line(error),
        )
    time.sleep(_SECONDS_BEFORE_RETRY)
    return read(entry)
