"""Training a run: the same from the command line, a script and a notebook."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError, Error
from dovetail.data import has_tokenizer
from dovetail.parallel import Processes, leave_alone_on_error, start_distributed
from dovetail.run.contents import save_data, save_source, save_tokenizer, use_contents
from dovetail.run.data_changes import KEY, accepted_change
from dovetail.run.initialization import ChecksTokenizer
from dovetail.run.run import Run
from dovetail.runtime import (
    Profiler,
    RunFolder,
    StopRequest,
    explain_failure,
    folder_error,
    leave_together,
    use_compilation_cache,
)
from dovetail.targets import (
    Machine,
    create_virtual_devices,
    local_device_kind,
    local_mismatch,
)
from dovetail.trainer import Hooks, Interrupted, Outcome
from dovetail.utils import Progress, file_digests

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

_PREPARE_SECONDS = 86400.0  # the watchdog has a limit for this; a dead peer ends the process


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to train, or complete.

    Attributes:
        trainer: checked and traced, unless the run is complete.
        folder: the run folder; nothing is written to it yet.
        process: this process, and how many there are.
        saved_step: the step of the newest checkpoint; 0 if there is none.
        profile: the steps to trace.
    """

    trainer: Trainer
    folder: RunFolder
    process: Processes
    saved_step: int
    profile: range | None = None

    @property
    def is_complete(self) -> bool:
        """Whether an earlier training is past the number of steps."""
        return self.saved_step > self.trainer.steps

    def recorded_outcome(self) -> Outcome:
        """Returns the outcome of the earlier training, from the metrics that it recorded."""
        run = Run(self.folder.path)
        metrics: dict[str, float | int | str] = {}
        for entry in run.metrics():
            metrics |= {k: v for k, v in entry.items() if k != "step" and v is not None}
        return Outcome(self.saved_step, losses=run.losses(), metrics=metrics)

    def train(
        self, about: dict[str, Any], *, reports: Sequence[str] = (), hooks: Hooks | None = None
    ) -> Outcome:
        """Trains; see `train_run`."""
        return train_run(
            self.trainer, self.folder, about, reports=reports, hooks=hooks, profile=self.profile
        )


@leave_alone_on_error()
def prepare_run(
    config: Trainer.Config,
    folder: Path,
    progress: Progress,
    *,
    machine: Machine | None = None,
    profile: range | None = None,
    shows_training: bool = True,
) -> PreparedRun:
    """Does all that comes before training: joins other processes, builds, checks and traces.

    Mistakes are errors before anything is compiled or written.

    Args:
        config: the experiment.
        folder: the run folder.
        progress: shows the stages; only the first process shows them.
        machine: the target that the experiment was fitted to, if any.
        profile: the steps to trace, counted from 0.
        shows_training: whether the trainer shows its progress to a person.
    """
    check_profile(profile, 0, config.steps)
    use_compilation_cache()
    create_virtual_devices(machine)
    process = start_distributed()  # before anything uses a device
    if process.index > 0:
        progress.silence()
    _refuse_elsewhere(machine)
    run_folder = RunFolder(folder)
    trainer = _open_trainer(config, run_folder, progress.say, shows_training)
    prepared = PreparedRun(trainer, run_folder, process, trainer.saved_step(folder), profile)
    if not prepared.is_complete:
        check_profile(profile, prepared.saved_step, trainer.steps)
        progress.stage("tracing the step")
        trainer.program().check()
    return prepared


def check_profile(profile: range | None, saved: int, steps: int) -> None:
    """Raises a ConfigError if a run takes none of the steps to trace.

    Args:
        profile: the steps to trace, counted from 0.
        saved: the step that the run continues from.
        steps: the number of steps of the run.
    """
    if profile is None:
        return
    if profile.step != 1 or not 0 <= profile.start < profile.stop:
        raise ConfigError(f"profile: expected steps such as range(10, 13), got {profile!r}.")
    if profile.start < steps and profile.stop > saved:
        return
    left = f"will take the steps {saved}:{steps}" if saved < steps else "has no steps left"
    raise ConfigError(
        f"--profile {profile.start}:{profile.stop}: expected steps of this run, which {left}. "
        "Choose others, or more steps with --steps."
    )


def _refuse_elsewhere(machine: Machine | None) -> None:
    """Raises a ConfigError if an experiment was fitted to another machine than this one."""
    if machine is not None and (difference := local_mismatch(machine)) is not None:
        raise ConfigError(
            f"--target {machine.name}: this is not that machine: {difference}. Run it there; "
            "--dry-run reports what would happen; --target cpu trains on the CPU here."
        )


def _open_trainer(
    config: Trainer.Config,
    folder: RunFolder,
    log: Callable[[str], None],
    shows_training: bool,
) -> Trainer:
    """Builds the trainer of a run; a run that is resumed uses the data that it began with."""
    trainer = config.build()  # the config is saved as it is, whether progress is shown or not
    if not shows_training:
        trainer.hide_progress()
    change = accepted_change(folder, trainer)
    if change is not None:
        log(f"the data changes from step {change['step']} on: {'; '.join(change['changes'])}")
    use_contents(
        folder, trainer.input, lambda text: log(f"warning: {text}"), is_changed=change is not None
    )
    return trainer


@leave_alone_on_error()
def train_run(
    trainer: Trainer,
    folder: RunFolder,
    about: dict[str, Any],
    *,
    reports: Sequence[str] = (),
    hooks: Hooks | None = None,
    stop: StopRequest | None = None,
    profile: range | None = None,
) -> Outcome:
    """Trains a run in its folder to the last step, or until a signal.

    Args:
        trainer: as `prepare_run` builds it.
        folder: the run folder; this process locks it.
        about: what run.json says of the experiment.
        reports: what modifiers and the target report; logged first.
        hooks: the callbacks of the training loop.
        stop: records signals; those before the first step stop it, too.
        profile: the steps to trace, counted from 0; the trace is in the run folder.
    """
    hooks, process = hooks or Hooks(), start_distributed()
    profiler = Profiler(folder.path, profile, hooks.log) if profile is not None else None
    if profiler is not None:
        hooks = replace(hooks, around_step=profiler.around_step)
    with stop or StopRequest() as stop:
        # Each host may prepare the data on its own disk, and one of them for longer than others.
        with leave_together("the data is prepared", _PREPARE_SECONDS):
            trainer.check(folder.path)  # fails before anything is written
            _check_tokenizer(trainer, folder)
        # With several processes none exits alone: all stop together before the first step.
        if stop.received is not None and process.count == 1:
            raise Interrupted(
                f"stopped by {stop.received} before the first step; nothing is written"
            )
        if process.index == 0:
            _claim(trainer, folder, about)
        try:
            for report in reports:
                hooks.log(report)
            hooks.log(f"training {about.get('experiment', 'a model')} in {folder.path}")
            outcome = _checked(trainer, trainer.train(folder.path, hooks, stop))
            if process.index == 0:
                _record(folder, outcome, hooks.log)
            return outcome
        except (Exception, KeyboardInterrupt) as error:
            _free_arrays(error)
            raise
        finally:
            if profiler is not None:
                profiler.finish()
            folder.release()


def _free_arrays(error: Exception | KeyboardInterrupt) -> None:
    """Clears the local variables of the traceback, such as the training state.

    A notebook keeps the last traceback. The state would stay on the devices, and the same call
    could run out of memory when it continues. An error that nobody foresaw keeps its variables,
    for a debugger.
    """
    is_foreseen = isinstance(error, Error | KeyboardInterrupt)
    if not (is_foreseen or (isinstance(error, Exception) and explain_failure(error))):
        return
    chained: BaseException | None = error
    while chained is not None:
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


def _check_tokenizer(trainer: Trainer, folder: RunFolder) -> None:
    """Raises a ConfigError if a new run would start from weights that have another tokenizer."""
    is_new = folder.about_if_any() is None
    source, initialization = trainer.input, trainer.initialization
    if is_new and isinstance(initialization, ChecksTokenizer) and has_tokenizer(source):
        with tempfile.TemporaryDirectory() as scratch:
            source.tokenizer.save(Path(scratch))
            initialization.check_tokenizer(file_digests(Path(scratch)))


def _record(folder: RunFolder, outcome: Outcome, log: Callable[[str], None]) -> None:
    """Records how far training came; the run is complete without that."""
    try:
        folder.record_step(outcome.step)
    except (OSError, Error) as error:
        log(f"warning: {folder.path}/run.json lacks the last step, {outcome.step}: {error}")


def _checked(trainer: Trainer, outcome: Any) -> Outcome:
    """Checks the return value of `train`, which a user's trainer may have forgotten."""
    if not isinstance(outcome, Outcome):
        raise ConfigError(
            f"{type(trainer).__name__}.train: expected an Outcome, got {outcome!r}. End it with "
            "`return Outcome(step, stop.received, saved=self.checkpointer.finish())`."
        )
    return outcome


def _claim(trainer: Trainer, folder: RunFolder, about: dict[str, Any]) -> None:
    """Locks the folder, and writes everything that the run needs to be used elsewhere."""
    config: Any = trainer.config
    change = accepted_change(folder, trainer)
    folder.claim(config, accepts_change=change is not None)
    try:
        before = folder.about_if_any()
        about = about | {"device": local_device_kind()} | _base(config, before)
        if (data := save_data(folder, trainer.input)) is not None:
            if change is None:
                folder.check_data(data)
            about["data"] = data
        if changes := [*(before or {}).get(KEY, []), *([] if change is None else [change])]:
            about[KEY] = changes
        if (tokenizer := save_tokenizer(folder, trainer.input)) is not None:
            about["tokenizer"] = tokenizer
        if before is not None and "step" in before:
            about["step"] = before["step"]  # until this life ends
        if before is None and (parent := _parent(config)) is not None:
            save_source(folder, parent.source_folder)
        folder.describe(config, about)
    except OSError as error:
        folder.release()
        raise folder_error(f"{folder.path}: the run folder cannot be written", error) from error
    except BaseException:
        folder.release()
        raise


def _parent(config: Trainer.Config) -> Run | None:
    path = getattr(config.initialization, "run", None)
    return Run(path) if isinstance(path, str) else None


def _base(config: Trainer.Config, before: dict[str, Any] | None) -> dict[str, Any]:
    """Returns where the model that the run is initialized from came from.

    A run that continues knows it, and does not need the folder of the other run any more.
    """
    if before is not None and "base" in before:
        return {"base": before["base"]}
    parent = _parent(config)
    return {} if parent is None else {"base": parent.about.get("imported", {})}
