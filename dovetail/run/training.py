"""Training a run: the same from the command line, a script and a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.parallel import start_distributed
from dovetail.run.contents import save_data, save_source, save_tokenizer, use_saved_data
from dovetail.run.run import Run
from dovetail.runtime import RunFolder, StopRequest
from dovetail.targets import local_device_kind
from dovetail.trainer import Hooks, Outcome

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; the same call continues it."""


def open_trainer(config: Trainer.Config, folder: RunFolder, log: Callable[[str], None]) -> Trainer:
    """Builds the trainer of a run; a run that is resumed uses the data that it began with."""
    folder.check_identity(config)
    trainer = config.build()
    if (folder.path / "run.json").is_file():
        warning = use_saved_data(folder, folder.about(), trainer.input)
        if warning is not None:
            log(f"warning: {warning}")
    return trainer


def train_run(
    trainer: Trainer,
    folder: RunFolder,
    about: dict[str, Any],
    *,
    reports: Sequence[str] = (),
    hooks: Hooks | None = None,
    stop: StopRequest | None = None,
) -> Outcome:
    """Trains a run in its folder to the last step, or until a signal.

    Args:
        trainer: as `open_trainer` returns it.
        folder: the run folder; this process locks it.
        about: what run.json says of the experiment.
        reports: what modifiers and the target report; logged first.
        hooks: the callbacks of the training loop.
        stop: records signals; those before the first step stop it, too.
    """
    hooks, process = hooks or Hooks(), start_distributed()
    with stop or StopRequest() as stop:
        trainer.check(folder.path)  # fails before anything is written
        # With several processes none exits alone: all stop together before the first step.
        if stop.received is not None and process.count == 1:
            raise Interrupted(f"stopped by {stop.received} before the first step")
        if process.index == 0:
            _claim(trainer, folder, about)
        try:
            for report in reports:
                hooks.log(report)
            hooks.log(f"training {about.get('experiment', 'a model')} in {folder.path}")
            return trainer.train(folder.path, hooks, stop)
        finally:
            folder.release()


def _claim(trainer: Trainer, folder: RunFolder, about: dict[str, Any]) -> None:
    """Locks the folder, and writes everything that the run needs to be used elsewhere."""
    config: Any = trainer.config
    folder.claim(config)
    try:
        about = about | {"device": local_device_kind()} | _base(config)
        if (data := save_data(folder, trainer.input)) is not None:
            folder.check_data(data)
            about["data"] = data
        if (tokenizer := save_tokenizer(folder, trainer.input)) is not None:
            about["tokenizer"] = tokenizer
        if (parent := _parent(config)) is not None:
            save_source(folder, parent.source_folder)
        folder.describe(config, about)
    except OSError as error:
        folder.release()
        raise ConfigError(
            f"{folder.path}: the run folder cannot be written: {error.strerror or error}."
        ) from error
    except BaseException:
        folder.release()
        raise


def _parent(config: Trainer.Config) -> Run | None:
    path = getattr(config.initialization, "run", None)
    return Run(path) if isinstance(path, str) else None


def _base(config: Trainer.Config) -> dict[str, Any]:
    """Returns where the model that the run is initialized from came from."""
    parent = _parent(config)
    return {} if parent is None else {"base": parent.about.get("imported", {})}
