"""Fine-tuning: any experiment, initialized from the model of another run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError, RunError, modifier

if TYPE_CHECKING:
    from dovetail.run import Run


@modifier("from-run")
def initialize_from_run(config: Any, path: str) -> Any:
    """Initializes model, tokenizer and parameters from a run; the rest is the experiment's.

    Args:
        config: the experiment.
        path: the run folder, relative to the working directory.
    """
    from dovetail.run import InitFromRun, Run

    try:
        run = Run(path)
    except RunError as error:
        raise ConfigError(
            f"--with from-run: {error} If a run that began with it shall continue, name that run: "
            "`dovetail train RUN` needs no other folder."
        ) from error
    config.set(model=run.config.model, initialization=InitFromRun.Config(run=path))
    config.input.set(tokenizer=_tokenizer(run, config))
    return config


def _tokenizer(run: Run, config: Any) -> Any:
    """Returns the tokenizer of a run, with its trained files."""
    from dovetail.data import BytePairTokenizer, PretrainedTokenizer

    source: Any = run.config
    tokenizer, saved = source.input.tokenizer, run.folder.tokenizer
    if saved.is_dir() and isinstance(
        tokenizer, BytePairTokenizer.Config | PretrainedTokenizer.Config
    ):
        return tokenizer.clone(folder=str(saved))
    # A tokenizer that another package defines, or an earlier run: trained again, and compared.
    if source.input.corpus != config.input.corpus:
        raise ConfigError(
            f"--with from-run: the tokenizer of {run.path} was trained on its corpus, and this "
            "experiment has another corpus. Train on the corpus of that run, or start from an "
            "imported model."
        )
    return tokenizer
