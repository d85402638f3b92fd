"""Own files and an own tokenizer in an experiment, and published sizes that have no data."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.api import experiment
from dovetail.config import Component, ConfigError, apply_modifier
from dovetail.data import Files, MixtureInput, PretrainedTokenizer, UnsetCorpus, prepare
from dovetail.experiments import find_experiment
from dovetail.experiments.published import published_sizes
from tests.interop.files import write_tokenizer


def test_files_of_an_experiment() -> None:
    changed = experiment("tiny-lm").data("notes/", "s3://more/*.jsonl", text="{title}, {body.text}")
    corpus = changed.config.input.corpus
    assert isinstance(corpus, Files.Config)
    assert corpus.files == ("notes/", "s3://more/*.jsonl")
    assert corpus.text == "{title}, {body.text}"
    assert experiment("tiny-lm").data("a b, c/").config.input.corpus.files == "a b, c/"
    assert experiment("tiny-lm").data(Path("notes")).features == ("data:files=notes",)
    with pytest.raises(ConfigError, match="data: expected a file"):
        experiment("tiny-lm").data()


def test_the_default_folder_names_the_files() -> None:
    changed = experiment("tiny-lm").data("notes")
    assert str(changed.folder) == "runs/tiny-lm,data:files=notes"


def test_an_override_of_the_corpus_still_counts() -> None:
    changed = experiment("tiny-lm").data("notes").override("input.corpus.text=body")
    assert changed.config.input.corpus.text == "body"


def test_the_tokenizer_of_a_folder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 258)
    feature = f"tokenizer:path={tmp_path},end_of_text=</s>"
    config = experiment("tiny-lm").with_features(feature).config
    tokenizer = config.input.tokenizer
    assert isinstance(tokenizer, PretrainedTokenizer.Config)
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (258, 257)
    assert config.build().model.vocab_size == 258


def test_inputs_without_a_corpus_are_refused() -> None:
    config = find_experiment("tiny-lm").config()
    config.input = MixtureInput.Config(sequence_length=8, batch_size=8)
    with pytest.raises(ConfigError, match=r"--with data: .* MixtureInput, has no corpus: set"):
        apply_modifier(config, "data:files=notes")
    config.input = NoText.Config()
    with pytest.raises(ConfigError, match=r"--with tokenizer: .*has no tokenizer"):
        apply_modifier(config, "tokenizer:path=folder")


@pytest.mark.parametrize("name", published_sizes())
def test_published_sizes_have_no_data(name: str) -> None:
    config = find_experiment(name).config()
    assert isinstance(config.input.corpus, UnsetCorpus.Config)
    source = config.input.build()
    source.check_data()
    assert source.spec().tokens.shape[0] == config.input.batch_size


def test_preparing_no_data_says_what_to_name(cache_folder: Path) -> None:
    config = find_experiment("llama2-7b").config()
    with pytest.raises(ConfigError) as raised:
        prepare(config.input, progress=False)
    message = str(raised.value)
    for words in ("--data PATH", "Files", ".files=PATH", 'experiment.data("PATH")', "docs/data.md"):
        assert words in message
    own = experiment("llama2-7b").config.build().input
    with pytest.raises(ConfigError, match=r"^input\.corpus: .* input\.corpus=Files"):
        own.prepare(progress=False)


class NoText(Component):
    """An input of something else."""

    def spec(self) -> None:
        """Returns nothing."""

    def batch(self, step: int, rows: slice | None = None) -> None:
        """Returns nothing."""
