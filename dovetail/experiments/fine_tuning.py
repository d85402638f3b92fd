"""Fine-tuning: any experiment, initialized from the model of another run."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, modifier


@modifier("from-run")
def initialize_from_run(config: Any, path: str) -> Any:
    """Initializes model, tokenizer and parameters from a run; the rest is the experiment's.

    Args:
        config: the experiment.
        path: the run folder, relative to the working directory.
    """
    # The run's config may name components of any of these.
    for subpackage in ("data", "layers", "learner", "models", "parallel", "runtime", "trainer"):
        importlib.import_module(f"dovetail.{subpackage}")
    from dovetail.runtime import RunFolder
    from dovetail.trainer import InitFromRun

    run = RunFolder(Path(path))
    run.about()  # raises if this is not a run folder
    source: Any = run.config()
    config.set(model=source.model, initialization=InitFromRun.Config(run=path))
    config.input.set(tokenizer=_tokenizer(run, source, config))
    return config


def _tokenizer(run: Any, source: Any, config: Any) -> Any:
    from dovetail.data import PretrainedTokenizer

    tokenizer = source.input.tokenizer
    if isinstance(tokenizer, PretrainedTokenizer.Config):
        return tokenizer if tokenizer.folder else tokenizer.clone(folder=str(run.tokenizer))
    if source.input.corpus != config.input.corpus:
        raise ConfigError(
            f"--with from-run: the tokenizer of {run.path} was trained on its corpus, and this "
            "experiment has another corpus. Train on the corpus of that run, or start from an "
            "imported model."
        )
    return tokenizer
