"""The checkpointer: saves the training state, and restores the newest intact checkpoint.

A checkpoint does not depend on the mesh: each array is stored once, under its path. A save has
these steps, the first on the training thread and the others in the background:

1. The digest of every array is computed on the devices, and Orbax copies the arrays to the host.
2. Orbax writes the files. A state that is not finite is refused.
3. All processes agree that everything is written, with the same digests.
4. Process 0 writes the manifest. That is the commit: before it, there is no checkpoint.
5. The files are read back, each process a share, and compared with the digests.
6. Process 0 removes old checkpoints.

A failed save (a full disk) is logged, the next save tries again, and earlier checkpoints stay.
Restoring takes the newest checkpoint that all processes can read, and compares the arrays on the
devices with the digests. Reading changes nothing on disk, so a run can be read while another
process trains it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.config import Component, ConfigError, ConfigOf, Error, StorageError
from dovetail.runtime.agreement import Agreement, open_agreement
from dovetail.runtime.checkpoints import old_format
from dovetail.runtime.checkpoints.compatibility import (
    check_compatible,
    check_complete,
    parameter_names,
)
from dovetail.runtime.checkpoints.folders import CheckpointName, Entry, Retention
from dovetail.runtime.checkpoints.intervals import SaveInterval
from dovetail.runtime.checkpoints.local.tier import LocalEntry, LocalTier
from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError
from dovetail.runtime.checkpoints.objects.store import (
    ObjectStore,  # noqa: F401  # registers it, so that text may name it
)
from dovetail.runtime.checkpoints.orbax_store import zeros
from dovetail.runtime.checkpoints.restoring import Reading, Restorer, first_line
from dovetail.runtime.checkpoints.saving import BadStateError, SaveSettings, cause_of
from dovetail.runtime.checkpoints.stores import CheckpointStore, PendingSave, RunFolderStore
from dovetail.runtime.digest import digests, named_leaves
from dovetail.runtime.faults import BadState, FailedSave, FaultEvent
from dovetail.runtime.lives import FencedError, Life, check_nothing_lost

_LOG = logging.getLogger("dovetail")

_LOCAL, _DURABLE = "local", "durable"


class Checkpointer(Component):
    """Saves the training state periodically, and restores the newest intact checkpoint."""

    class Config(Component.Config["Checkpointer"]):
        """The interval between saves, and which checkpoints to keep.

        Attributes:
            every: the number of steps between saves.
            keep: how many of the newest checkpoints are kept.
            keep_every: checkpoints at multiples of this step are kept for ever; None keeps none.
            minutes: the most minutes between saves; None for no limit.
            keep_best: the metric of an evaluator by which the best checkpoint is kept, such as
                held_out/loss, among those at whose step it was evaluated; None keeps none.
            best_mode: min or max, whichever is best.
            keep_damaged: how many of the newest damaged checkpoints are kept, as damaged-*, to find
                out what happened.
            max_host_bytes: the most bytes of the state in a host's memory at a time during a save.
                A save copies and compresses, so training waits if the state is larger than a fifth.
            deadline_seconds: how long the processes of a run wait for each other.
            store: the place of the checkpoints: the run folder, or an object store.
            local: more frequent saves to the hosts' own disks, with copies at peers; None for none.
        """

        every: int = 500
        keep: int = 2
        keep_every: int | None = None
        minutes: float | None = None
        keep_best: str | None = None
        best_mode: str = "min"
        keep_damaged: int = 2
        max_host_bytes: int = 32 * 2**30
        deadline_seconds: int = 600
        store: ConfigOf[CheckpointStore] = RunFolderStore.Config()
        local: LocalTier.Config | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("every", "keep", "keep_every", "max_host_bytes", "deadline_seconds"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise ConfigError(f"{config.locate(name)}: expected 1 or more, got {value}.")
        if config.keep_damaged < 0:
            raise ConfigError(
                f"{config.locate('keep_damaged')}: expected 0 or more, got {config.keep_damaged}."
            )
        if config.best_mode not in ("min", "max"):
            raise ConfigError(
                f"{config.locate('best_mode')}: expected min or max, got {config.best_mode!r}."
            )
        if config.minutes is not None and config.minutes <= 0:
            raise ConfigError(
                f"{config.locate('minutes')}: expected more than 0, got {config.minutes}."
            )
        self._every = config.every
        self._interval = SaveInterval(config.every, config.minutes, self._ask)
        self._metrics: tuple[int, Mapping[str, Any]] = (0, {})
        self._store, self._is_open = config.store.build(), False
        self._agreement: Agreement | None = None
        self._life: Life | None = None
        self._life_number = self._rounds = 0
        self._intact: set[tuple[str, int]] = set()
        """Tiers and steps of checkpoints that are known to be good: restored, or saved."""
        self._local: LocalTier | None = config.local.build() if config.local else None
        self._due_step: int | None = None
        self._pending: dict[str, PendingSave] = {}
        self._saved = True
        self._faults: list[FaultEvent] = []
        self._passed_over: list[CheckpointName] = []
        self._suspects: frozenset[int] = frozenset()
        self._damaged: set[tuple[bool, CheckpointName]] = set()

    def open(self, folder: Path) -> None:
        """Sets the folder of the checkpoints; reads and writes nothing yet."""
        self._store.open(folder)
        self._folder, self._is_open = folder, True

    def start(
        self, agreement: Agreement, life: Life | None, suspects: frozenset[int] = frozenset()
    ) -> None:
        """Starts to train as one life of the run; suspect checkpoints are tried last."""
        self._agreement, self._life, self._suspects = agreement, life, suspects
        config: Any = self.config
        number = life.number if life is not None else 0  # process 0 has the record
        self._life_number = self._gather("number of the life", number)[0]
        self._opened().start(agreement, config.deadline_seconds, self._life_number)
        if self._local is not None:
            limits = (config.max_host_bytes, config.deadline_seconds)
            self._local.start(self._folder.absolute(), agreement, life, self._life_number, *limits)

    def due(self, step: int) -> bool:
        """Says whether a save is due after this step, to any tier."""
        self._due_step = step if self._interval.due(step) else None
        return self._due_step == step or self._is_due_locally(step)

    def evaluated(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of an evaluator after a step, which may be saved next."""
        same_step = self._metrics[1] if self._metrics[0] == step else {}
        self._metrics = (step, {**same_step, **metrics})

    def save(self, step: int, state: Any) -> None:
        """Starts an asynchronous save to the tiers for which it is due.

        A failure is logged and becomes a fault (`take_faults`).

        Raises:
            FencedError: if a newer life of the run has started.
        """
        leaves, computed = _with_digests(state)
        if self._is_due_locally(step):
            self._save_locally(step, leaves, computed)
        is_due = self._due_step == step or step % self._every == 0
        if is_due or not self._is_due_locally(step):
            self._save_durably(step, leaves, computed)

    def save_last(self, step: int, state: Any) -> None:
        """Starts a save of a run's last state to all tiers.

        The local tier completes first, because a preempted machine may be gone soon.
        """
        leaves, computed = _with_digests(state)
        if self._local is not None and self._local.is_started:
            self._save_locally(step, leaves, computed)
        self._save_durably(step, leaves, computed)

    def _have_saved(self, tier: str, step: int, topics: str) -> bool:
        """Says whether a tier has a step, as when a finished run is restarted."""
        there = self._local if tier == _LOCAL and self._local is not None else self._store
        has_it = (tier, step) in self._intact and step in there.steps()
        return all(self._gather(f"{topics}is there", has_it))

    def _save_durably(self, step: int, leaves: Any, computed: Any) -> None:
        self._finish_pending(_DURABLE)
        self._saved = True
        topics = self._next_round(f"save of step {step}")
        try:
            if self._have_saved(_DURABLE, step, topics):
                return
            if self._peers().index == 0:
                self._settings().check_life()
                self._set_aside()
                self._opened().prepare(step)
            self._passed_over = []
            self._gather(f"{topics}the folder is ready", None)
            self._pending[_DURABLE] = self._opened().save(
                self._settings(), step, leaves, computed, topics, self._metric(step)
            )
        except Exception as error:  # noqa: BLE001  # training continues after any error of the disk
            self._peers().withdraw(topics, first_line(error))
            self._report(_DURABLE, step, cause_of(error, self._life, computed, step))

    def _set_aside(self) -> None:
        """Renames the checkpoints that the restore has passed over."""
        suspects = [name for name in self._passed_over if self._is_only_suspect(name)]
        if suspects:
            self._opened().distrust({name.step for name in suspects})
            _LOG.warning(
                "Checkpoints with which earlier lives died are renamed to suspect-*, and kept: %s.",
                ", ".join(map(str, suspects)),
            )
        self._passed_over = [name for name in self._passed_over if name not in suspects]
        if self._passed_over:
            self._opened().set_aside(self._passed_over)
            config: Any = self.config
            _LOG.warning(
                "Checkpoints that could not be used are renamed to damaged-*: %s. The newest %d of "
                "those are kept (checkpointer.keep_damaged).",
                ", ".join(map(str, self._passed_over)),
                config.keep_damaged,
            )

    def _is_only_suspect(self, name: CheckpointName) -> bool:
        return name.step in self._suspects and (False, name) not in self._damaged

    def _save_locally(self, step: int, leaves: Any, computed: Any) -> None:
        """Saves to the local tier, even while the durable tier still writes an earlier step."""
        self._finish_pending(_LOCAL)
        topics = self._next_round(f"local save of step {step}")
        try:
            assert self._local is not None
            if not self._have_saved(_LOCAL, step, topics):
                self._pending[_LOCAL] = self._local.save(step, leaves, computed, topics)
        except Exception as error:  # noqa: BLE001  # training continues after any error of the disk
            self._peers().withdraw(topics, first_line(error))
            self._report(_LOCAL, step, cause_of(error, self._life, computed, step))

    def _is_due_locally(self, step: int) -> bool:
        return self._local is not None and self._local.is_started and self._local.due(step)

    def finish(self) -> bool:
        """Waits for the last saves, and returns whether the durable save succeeded."""
        self._finish_pending(_LOCAL)
        self._finish_pending(_DURABLE)
        return self._saved

    def close(self) -> None:
        """Stops the server through which peers read this process's files."""
        if self._local is not None:
            self._local.close()

    def take_faults(self) -> list[FaultEvent]:
        """Returns the failures of saves since the last call, the same on all processes."""
        faults, self._faults = self._faults, []
        return faults

    def distrust(self, after: int) -> None:
        """Sets checkpoints after step `after` aside, because a device computed wrong results.

        If `after` is not 0 and all checkpoints are later, the oldest stays: an unverified
        state is better than none. Checkpoints of the local tier are removed.
        """
        self.finish()
        topics = self._next_round("distrust")
        try:
            self._distrust(after, topics)
        except (Error, OSError) as error:
            self._peers().withdraw(topics, first_line(error))
            raise

    def _distrust(self, after: int, topics: str) -> None:
        local = self._local if self._local is not None and self._local.is_started else None
        answers = self._gather(f"{topics}steps", (self.steps(), local.steps() if local else []))
        durable = answers[0][0]
        steps = sorted({*durable, *(step for _, steps in answers for step in steps)})
        later = [step for step in steps if step > after]
        suspect = later[1:] if after and len(later) == len(steps) else later
        if local is not None:
            local.distrust(suspect)
        aside = [step for step in durable if step in suspect]
        if aside and self._peers().index == 0:
            self._opened().distrust(aside)
            _LOG.warning(
                "The checkpoints of steps %s may be corrupt. They are renamed to suspect-*.",
                ", ".join(map(str, aside)),
            )
        if self._life is not None:
            left = {*steps} - {*suspect}
            self._life.saved(max(left, default=0))  # a later life does not miss the others
        self._gather(f"{topics}set aside", None)

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first."""
        return self._opened().steps()

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Returns (step, state) of the newest intact checkpoint; None if there is none.

        The next save renames newer, damaged checkpoints; only the process that trains saves.

        Args:
            like: the state as shapes, dtypes and shardings.
        """
        structs, treedef = named_leaves(like), jax.tree.structure(like)
        saved = {path: struct for path, struct in structs.items() if struct.size}
        restorer = self._restorer()

        def build(arrays: Mapping[str, jax.Array]) -> Any:
            leaves = [arrays[path] if path in saved else zeros(structs[path]) for path in structs]
            return jax.tree.unflatten(treedef, leaves)

        def read(entry: Entry) -> Reading:
            folder = self._opened().of(entry.name)
            if entry.manifest is None:
                state = old_format.read_state(Path(folder), like)
                return Reading({}, {}, lambda _: state)
            check_complete(folder, entry.manifest, structs)
            arrays = restorer.read_arrays(entry, saved)
            _check_step(entry.step, arrays)
            return Reading(arrays, saved, build)

        found = restorer.newest_intact(read)
        if found is None:
            self._check_loss()
            return None
        entry, state = found
        tier = _LOCAL if isinstance(entry, LocalEntry) else _DURABLE
        self._intact = {known for known in self._intact if known[1] <= entry.step}
        self._intact.add((tier, entry.step))
        durable = [each.name for each in self._opened().entries()]
        self._passed_over = [name for name in durable if name.step > entry.step]
        if tier == _DURABLE:  # after a local one, that of the same step may be good
            newer = [name for name in durable if name.step == entry.step and name.life > entry.life]
            self._passed_over += newer
        if self._life is not None:
            self._life.saved(max((s for s in self.steps() if s <= entry.step), default=0))
        if self._local is not None and self._local.is_started:
            self._local.restored(entry.step)
        return entry.step, state

    def _check_loss(self) -> None:
        """Refuses to start from scratch if an earlier life has saved a step.

        Raises:
            RunError: on all processes, because the checkpoints of this run are gone.
        """
        topic = f"{self._next_round('restore')}lost steps"
        try:
            before = self._life.before() if self._life is not None else None
        except OSError as error:
            self._peers().withdraw(topic, first_line(error))
            raise StorageError(f"The lives of this run cannot be read: {error}.") from error
        lost = (before.saved, before.reached) if before is not None else (None, None)
        saved, reached = self._gather(topic, lost)[0]
        check_nothing_lost(str(self._opened()), saved, reached if self._peers().index == 0 else 0)

    def restore_parameters(
        self, like: Mapping[str, jax.ShapeDtypeStruct]
    ) -> tuple[int, dict[str, jax.Array]] | None:
        """Returns (step, arrays) of the newest intact checkpoint; None if there is none.

        Does not read the optimizer state. Returns averaged parameters (EMA) if the run has them.
        Arrays of `like` that are not saved are left out.

        Args:
            like: parameters and variables by path, as shapes, dtypes and shardings.
        """
        restorer = self._restorer()

        def read(entry: Entry) -> Reading:
            folder = self._opened().of(entry.name)
            if entry.manifest is None:
                parameters = old_format.read_parameters(Path(folder), like)
                return Reading({}, {}, lambda _: parameters)
            names = parameter_names(entry.manifest)
            shapes = {path: entry.manifest.arrays[name].shape for path, name in names.items()}
            check_compatible(folder, like, shapes)
            wanted = {names[path]: like[path] for path in like if path in names}

            def build(arrays: Mapping[str, jax.Array]) -> Any:
                found = {path: arrays[names[path]] for path in like if path in names}
                return {path: array.astype(like[path].dtype) for path, array in found.items()}

            return Reading(restorer.read_arrays(entry, wanted), wanted, build)

        found = restorer.newest_intact(read)
        return None if found is None else (found[0].step, found[1])

    def _finish_pending(self, tier: str) -> None:
        save = self._pending.pop(tier, None)
        if save is None:
            return
        failure = save.result()
        if failure is not None:
            self._report(tier, save.step, failure)
        else:
            self._intact.add((tier, save.step))
            self._damaged = {known for known in self._damaged if known[1].step != save.step}

    def _report(self, tier: str, step: int, error: Exception) -> None:
        """Records and logs a failed save."""
        self._saved = self._saved and tier == _LOCAL
        if isinstance(error, FencedError):
            raise error
        if isinstance(error, BadStateError):
            self._faults.append(BadState(step, f"{error}."))
            return
        self._faults.append(FailedSave(step, first_line(error)))
        _LOG.warning(
            "Saving step %d failed: %s. Training continues, and the next save tries again. Earlier "
            "checkpoints are kept (%s).",
            step,
            first_line(error),
            self._kept(),
        )

    def _kept(self) -> str:
        """Returns the saved steps, for a message; the store may be unreachable."""
        try:
            return ", ".join(map(str, self.steps())) or "none yet"
        except (Error, OSError):
            return f"{self._store} cannot be listed now"

    def _restorer(self) -> Restorer:
        config: Any = self.config
        return Restorer(
            self._opened(),
            self._local if self._local is not None and self._local.is_started else None,
            self._peers(),
            self._suspects,
            self._damaged,
            self._life.tries if self._life is not None else lambda step: None,
            config.deadline_seconds,
            self._next_round("restore"),
        )

    def _settings(self) -> SaveSettings:
        config: Any = self.config
        return SaveSettings(
            agreement=self._peers(),
            life=self._life,
            life_number=self._life_number,
            max_host_bytes=config.max_host_bytes,
            seconds=config.deadline_seconds,
            retention=Retention(
                config.keep,
                config.keep_every,
                config.best_mode if config.keep_best else None,
                config.keep_damaged,
            ),
        )

    def _metric(self, step: int) -> float | None:
        """Returns the metric by which the best checkpoint is kept, if this step has it."""
        config: Any = self.config
        value = self._metrics[1].get(config.keep_best) if self._metrics[0] == step else None
        return float(value) if value is not None and math.isfinite(value) else None

    def _peers(self) -> Agreement:
        if self._agreement is None:
            self._agreement = open_agreement()
        return self._agreement

    def _gather(self, topic: str, value: Any) -> list[Any]:
        config: Any = self.config
        return self._peers().gather(topic, value, config.deadline_seconds)

    def _ask(self, topic: str, value: Any) -> list[Any]:
        """Gathers values in a new round, because a rollback asks the same question again."""
        return self._gather(self._next_round(topic), value)

    def _next_round(self, name: str) -> str:
        """Returns a prefix of topics that was not used before."""
        self._rounds += 1
        return f"{name} (round {self._rounds}): "

    def _opened(self) -> CheckpointStore:
        if not self._is_open:
            raise RuntimeError("Call Checkpointer.open(folder) first.")
        return self._store


def abstract_state(state: Any, shardings: Any) -> Any:
    """Returns a state as shapes, dtypes and shardings, to restore into."""

    def struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(struct, state, shardings)


def _with_digests(state: Any) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns the arrays of a state by path, and starts to compute their digests."""
    leaves = {path: leaf for path, leaf in named_leaves(state).items() if leaf.size}
    return leaves, digests(leaves)


def _check_step(step: int, arrays: Mapping[str, jax.Array]) -> None:
    """Compares the step in the state, if there is one, with the step of the folder."""
    own = arrays.get("step")
    if own is not None and own.ndim == 0 and int(own) != step:
        raise DamagedCheckpointError(f"its state is that of step {int(own)}")
