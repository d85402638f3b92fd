"""Metrics to Weights & Biases; needs the extra `wandb`.

`dovetail train tiny-lm writers.wandb=WandB writers.wandb.project=my-project` logs the metrics and
the config of the run. The library has settings of its own in the environment (WANDB_MODE=offline).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from dovetail.config import Component, ConfigError
from dovetail.runtime.writers.base import Metrics
from dovetail.utils import atomic_write

_ID = "wandb-id"


class WandB(Component):
    """Logs metrics and texts to Weights & Biases.

    A restarted run continues the same run there. Repeated steps are logged once: the library
    drops a step that is not above the last one.
    """

    class Config(Component.Config["WandB"]):
        """The project and the run.

        Attributes:
            project: the project.
            entity: the team or user; None uses the login's.
            name: the name of the run; None uses the folder's name.
            mode: online or offline; None uses the environment's.
        """

        project: str = "dovetail"
        entity: str | None = None
        name: str | None = None
        mode: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.mode not in (None, "online", "offline", "disabled"):
            raise ConfigError(
                f"writers.wandb.mode: expected online, offline or disabled, got {config.mode!r}."
            )
        self._settings = config
        self._run: Any = None

    def open(self, folder: Path, first_step: int) -> None:
        """Starts the run, or continues it after a restart or a rollback."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "writers.wandb: Weights & Biases is not installed. Install the extra: "
                "pip install 'dovetail[wandb]'."
            ) from error
        settings = self._settings
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=settings.name or folder.absolute().name,
            mode=settings.mode,  # type: ignore[arg-type]
            dir=str(folder),
            id=_run_id(folder),
            resume="allow",
            reinit="return_previous",
            config=_config(folder),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, step: int, metrics: Metrics) -> None:
        """Logs the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Uploads what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _run_id(folder: Path) -> str:
    """Returns the name of the run at Weights & Biases, the same for all its lives."""
    file = folder / _ID
    if not file.exists():
        atomic_write(file, secrets.token_hex(8) + "\n")
    return file.read_text(encoding="utf-8").strip()


def _config(folder: Path) -> dict[str, str]:
    """Returns the config of the run by key, as its folder describes it."""
    file = folder / "config.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    pairs = (line.partition(" = ") for line in lines if " = " in line)
    return {key: value for key, _, value in pairs}
