"""PretrainedTokenizer: an existing tokenizer, loaded from its `tokenizer.json`.

A run has a copy of the files in its folder `tokenizer/`, so the run folder can be moved. The config
holds what must be known without the files, and a digest that detects other files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import REQUIRED, Component, ConfigError, incidental
from dovetail.data.tokenizer import (
    MAIN_FILE,
    byte_characters,
    digest_of,
    ids_and_offsets,
    read_file,
)

if TYPE_CHECKING:
    import tokenizers

# Copied with the main file, for the programs that a model is exported to.
CONFIG_FILE = "tokenizer_config.json"
COMPANIONS = (
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
TEMPLATES = "additional_chat_templates"
"""The folder of further chat templates, which is copied, too."""

_SPACE = "\u2581"  # how SentencePiece writes a space


class PretrainedTokenizer(Component):
    """A trained tokenizer in the format of the `tokenizers` library."""

    learns = False

    class Config(Component.Config["PretrainedTokenizer"]):
        """What is known without the files, and their folder."""

        vocab_size: int = REQUIRED
        end_of_text: int = REQUIRED
        """The id that ends every document."""
        digest: str = ""
        """The expected digest of the main file; empty accepts any."""
        folder: str = incidental("")
        """The folder of the files, for preparing data; a run has its own copy."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._config = config
        self._folder: Path | None = None
        self._model: tokenizers.Tokenizer | None = None
        self._literal: tokenizers.Tokenizer | None = None
        self._pieces: list[bytes] = []

    @property
    def name(self) -> str:
        """A short name."""
        return f"tokenizer-{self._config.vocab_size}"

    @property
    def vocab_size(self) -> int:
        """The number of token ids that a model must support."""
        return self._config.vocab_size

    @property
    def end_of_text(self) -> int:
        """The id that ends every document."""
        return self._config.end_of_text

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """The number of bytes of each id; 0 for special and unused ids."""
        self._ready()
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that the files mark as special."""
        added: dict[int, Any] = self._ready().get_added_tokens_decoder()
        return {token.content: index for index, token in added.items() if token.special}

    @property
    def folder(self) -> Path:
        """The folder of the files, which may have more than a tokenizer: a chat template."""
        return self._source()

    @property
    def stop_tokens(self) -> list[int]:
        """The ids that end generation: end of text, and the `eos_token` of the files."""
        model, config = self._ready(), self._source() / CONFIG_FILE
        named = json.loads(config.read_text("utf-8")).get("eos_token") if config.is_file() else None
        text = named.get("content") if isinstance(named, dict) else named
        found = model.token_to_id(text) if isinstance(text, str) else None
        return [self.end_of_text, *([found] if found not in (None, self.end_of_text) else [])]

    def fingerprint(self) -> str:
        """Returns a hash of everything that decides how a given corpus is tokenized."""
        digest = self._config.digest or digest_of(self._source() / MAIN_FILE)
        return f"files/1/{digest}/{self.end_of_text}"

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns the ids of a text, with a beginning-of-text token if the files define one.

        An end-of-text token is removed; preparing data adds it.
        """
        return self._without_end(self._ready().encode(text).ids)

    def encode_with_offsets(
        self, text: str, literal: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the ids of a text, and the characters of each; adds no special tokens."""
        model = self._ready()
        if literal:
            if self._literal is None:  # a copy, because the switch is a state of the object
                copy = type(model).from_str(model.to_str())
                copy.encode_special_tokens = True
                self._literal = copy
            model = self._literal
        return ids_and_offsets(model.encode(text, add_special_tokens=False))

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Returns the ids of several texts, on all cores."""
        return [
            self._without_end(each.ids) for each in self._ready().encode_batch_fast(list(texts))
        ]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the ids; special and unused ids have none."""
        self._ready()
        pieces = self._pieces
        return b"".join([pieces[index] for index in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids, by the tokenizer's own decoder."""
        return self._ready().decode([int(index) for index in ids], skip_special_tokens=True)

    def fit(self, texts: Iterable[str]) -> None:
        """Loads the files; there is nothing to train."""
        self._ready()

    def save(self, folder: Path) -> None:
        """Copies the files."""
        if self._folder is None:
            self._ready()
        elif self._folder.resolve() != folder.resolve():
            copy_tokenizer(self._folder, folder)

    def load(self, folder: Path) -> None:
        """Reads the files of a folder."""
        path = folder / MAIN_FILE
        found = digest_of(path)
        if self._config.digest not in ("", found):
            raise ConfigError(
                f"{path} is not the tokenizer of this config: its digest is {found}, "
                f"expected {self._config.digest}. Restore the file, or import the model again."
            )
        self._model, self._literal = read_file(path), None
        self._model.no_truncation()  # some files cut texts at a length
        self._model.no_padding()
        self._pieces = _pieces(self._model, self.vocab_size, path)
        self._folder = folder

    def _source(self) -> Path:
        if self._folder is not None:
            return self._folder
        if not self._config.folder:
            raise ConfigError(
                f"{self._config.locate('folder')}: expected the folder of {MAIN_FILE}, got none. "
                "Set it, or use --with from-run:path=RUN, which does."
            )
        return Path(self._config.folder)

    def _without_end(self, ids: list[int]) -> NDArray[np.int32]:
        array = np.array(ids, np.int32)
        return array[:-1] if len(ids) and ids[-1] == self.end_of_text else array

    def _ready(self) -> tokenizers.Tokenizer:
        if self._model is None:
            self.load(self._source())
        assert self._model is not None
        return self._model


def read_vocab_size(folder: Path) -> int:
    """Returns one more than the largest id of a tokenizer's files."""
    return max(read_file(folder / MAIN_FILE).get_vocab(with_added_tokens=True).values()) + 1


def token_id(folder: Path, token: str) -> int | None:
    """Returns the id of a token, such as `</s>`, in a tokenizer's files."""
    return read_file(folder / MAIN_FILE).token_to_id(token)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies those files of a tokenizer that exist."""
    target.mkdir(parents=True, exist_ok=True)
    for name in (MAIN_FILE, *COMPANIONS):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, target / TEMPLATES, dirs_exist_ok=True)


def _pieces(model: tokenizers.Tokenizer, size: int, path: Path) -> list[bytes]:
    """Returns the bytes of each id."""
    pieces = [b""] * size
    added: dict[int, Any] = model.get_added_tokens_decoder()
    to_bytes = _token_to_bytes(model)
    for token, index in model.get_vocab(with_added_tokens=True).items():
        if index >= size:
            raise ConfigError(
                f"{path}: the token {token!r} has the id {index}, but vocab_size is {size}."
            )
        if index in added:
            pieces[index] = b"" if added[index].special else added[index].content.encode()
        else:
            pieces[index] = to_bytes(token)
    return pieces


def _token_to_bytes(model: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """Returns the function from a token to its bytes: byte-level, or SentencePiece."""
    byte_of = {character: value for value, character in enumerate(byte_characters())}

    def from_byte_level(token: str) -> bytes:
        known = all(character in byte_of for character in token)
        return bytes(byte_of[character] for character in token) if known else token.encode()

    def from_sentence_piece(token: str) -> bytes:
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace(_SPACE, " ").encode()

    return from_byte_level if "ByteLevel" in str(model.decoder) else from_sentence_piece
