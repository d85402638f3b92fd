"""Reads what `PretrainedTokenizer` must know from the files of a tokenizer, as Hugging Face's are.

The end of text is the `eos_token` of tokenizer_config.json or special_tokens_map.json, or the
`eos_token_id` of generation_config.json or config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, did_you_mean
from dovetail.data.pretrained_tokenizer import PretrainedTokenizer, read_vocab_size, token_id
from dovetail.data.tokenizer import MAIN_FILE, digest_of, read_file

_NAMING = ("tokenizer_config.json", "special_tokens_map.json")
_NUMBERING = ("generation_config.json", "config.json")
_SHOWN = 8  # special tokens of a message


def pretrained_tokenizer(path: str | Path, end_of_text: str = "") -> PretrainedTokenizer.Config:
    """Returns the config of the tokenizer of a folder.

    Args:
        path: a folder with a tokenizer.json, or that file.
        end_of_text: the token that ends every document, such as `</s>`; by default that of the
            files.
    """
    folder = _folder(Path(path).expanduser())
    size = read_vocab_size(folder)
    end = _named_id(folder, end_of_text) if end_of_text else end_of_text_id(folder)
    if end is None or end >= size:
        raise ConfigError(
            f"{folder}: no end of text. Expected an eos_token in {' or '.join(_NAMING)}, or an "
            f"eos_token_id in {' or '.join(_NUMBERING)}. Name it: --with "
            f"tokenizer:path={folder},end_of_text=TOKEN{_specials(folder)}."
        )
    return PretrainedTokenizer.Config(
        vocab_size=size,
        end_of_text=end,
        digest=digest_of(folder / MAIN_FILE),
        folder=str(folder),
    )


def end_of_text_id(folder: Path) -> int | None:
    """Returns the id of the end of text that the files of a tokenizer name; None if none does."""
    for name in _NAMING:
        named = _read(folder / name).get("eos_token")
        text = named.get("content") if isinstance(named, Mapping) else named
        if isinstance(text, str) and (found := token_id(folder, text)) is not None:
            return found
    for name in _NUMBERING:
        value = _read(folder / name).get("eos_token_id")
        first = value[0] if isinstance(value, list) and value else value
        if type(first) is int:
            return first
    return None


def _folder(path: Path) -> Path:
    """Returns the folder of a tokenizer.json."""
    if path.is_file() and path.name != MAIN_FILE:
        raise ConfigError(
            f"{path}: expected a folder with a {MAIN_FILE}, or that file. A tokenizer of "
            "SentencePiece alone (tokenizer.model) is converted by transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW)."
        )
    return path.parent if path.is_file() else path


def _named_id(folder: Path, token: str) -> int:
    found = token_id(folder, token)
    if found is None:
        raise ConfigError(
            f"{folder / MAIN_FILE}: there is no token {token!r}. "
            f"{did_you_mean(token, _special_tokens(folder))}"
        )
    return found


def _special_tokens(folder: Path) -> list[str]:
    added: dict[int, Any] = read_file(folder / MAIN_FILE).get_added_tokens_decoder()
    return [token.content for token in added.values() if token.special]


def _specials(folder: Path) -> str:
    names = _special_tokens(folder)
    if not names:
        return ""
    more = ", ..." if len(names) > _SHOWN else ""
    return f" (its special tokens: {', '.join(names[:_SHOWN])}{more})"


def _read(file: Path) -> dict[str, Any]:
    """Reads a JSON object; a file that is missing is an empty one."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}
