"""The user's own files and tokenizer, in any experiment of text."""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigError, modifier


@modifier("data")
def use_files(config: Any, files: str | tuple[str, ...], text: str = "") -> Any:
    """Trains on your own files; `--data PATH` is short for it.

    Args:
        config: the experiment.
        files: a file, a folder, a pattern or a URL, or several in brackets.
        text: the column of the text, or a template such as {title}: {body}.
    """
    from dovetail.data import Files

    _check_input(config, "data", "corpus", "set input.sources.NAME.corpus of each source")
    corpus = Files.Config(files=files)
    config.input.set(corpus=corpus.set(text=text) if text else corpus)
    return config


@modifier("tokenizer")
def use_tokenizer(config: Any, path: str, end_of_text: str = "") -> Any:
    """Takes the tokenizer of a folder, as Hugging Face's tokenizers and models have one.

    Args:
        config: the experiment.
        path: a folder with a tokenizer.json, or that file.
        end_of_text: the token that ends every document, if the files do not name it.
    """
    from dovetail.data import pretrained_tokenizer

    _check_input(config, "tokenizer", "tokenizer", "its input is not of text")
    config.input.set(tokenizer=pretrained_tokenizer(path, end_of_text))
    return config


def _check_input(config: Any, name: str, field: str, advice: str) -> None:
    if field not in config.input.fields():
        kind = type(config.input).display_name()
        raise ConfigError(
            f"--with {name}: the input of this experiment, {kind}, has no {field}: {advice}."
        )
