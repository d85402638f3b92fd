"""Fine-tuning: any experiment, from the model of another run, and on conversations."""

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


@modifier("chat")
def train_on_conversations(
    config: Any, files: str, template: str = "", max_bad: float = 0.0
) -> Any:
    """Trains on files of conversations, with the loss on the answers; the rest stays.

    Conversations are packed whole; one longer than a row is cut at its end. The evaluators that are
    about the former text go: its prompts, and the trigram of all bytes.

    Args:
        config: the experiment.
        files: a file, a folder or a pattern; see `ChatFiles`.
        template: the chat template, as a file or a folder; empty takes that of the tokenizer.
        max_bad: the share of bad conversations that are skipped.
    """
    from dovetail.data import BestFit, ChatFiles, TokenInput, TruncateLong
    from dovetail.data.input import PackedInput
    from dovetail.trainer import ByteTrigram, Samples

    former = config.input
    if not isinstance(former, PackedInput.Config):
        raise ConfigError(
            "--with chat: expected an experiment with an input of text, got "
            f"{type(former).__qualname__}. Choose one with a tokenizer, such as tiny-lm."
        )
    config.input = TokenInput.Config(
        corpus=ChatFiles.Config(files=files, template=template, max_bad=max_bad),
        packing=BestFit.Config(long_documents=TruncateLong.Config()),
        tokenizer=former.tokenizer,
        sequence_length=former.sequence_length,
        batch_size=former.batch_size,
        seed=former.seed,
    )
    config.evaluators = {
        name: evaluator
        for name, evaluator in config.evaluators.items()
        if not isinstance(evaluator, ByteTrigram.Config | Samples.Config)
    }
    return config
