"""Fine-tuning: any experiment, begun from what another run has learned or imported."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, modifier


@modifier("from-run")
def from_run(config: Any, path: str) -> Any:
    """Takes the model, the tokenizer and the parameters of a run; the rest stays the experiment's.

    Args:
        config: the experiment.
        path: the run folder, from the working folder.
    """
    # The parts that the run's config may name.
    for room in ("data", "layers", "learner", "models", "parallel", "runtime", "trainer"):
        importlib.import_module(f"dovetail.{room}")
    from dovetail.runtime import RunFolder
    from dovetail.trainer import FromRun

    run = RunFolder(Path(path))
    run.about()  # says so if this is no run folder
    source: Any = run.config()
    config.set(model=source.model, start=FromRun.Config(run=path))
    config.input.set(tokenizer=_tokenizer(run, source, config))
    return config


def _tokenizer(run: Any, source: Any, config: Any) -> Any:
    from dovetail.data import TokenizerFiles

    tokenizer = source.input.tokenizer
    if isinstance(tokenizer, TokenizerFiles.Config):
        return tokenizer if tokenizer.folder else tokenizer.clone(folder=str(run.tokenizer))
    if source.input.corpus != config.input.corpus:
        raise ConfigError(
            f"--with from-run: the tokenizer of {run.path} was learned from its corpus, and this "
            "experiment has another, which would give other tokens. Train on the corpus of that "
            "run, or begin from an imported model."
        )
    return tokenizer
