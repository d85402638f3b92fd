"""Tokenizers: text to ids and back, exactly, for any UTF-8 text.

Both tokenizers work on bytes, so there are no unknown tokens, and every id decodes to a known
number of bytes, as bits per byte requires. The last id of the vocabulary is end of text. No text
encodes to it: the characters `<|endoftext|>` in a document are ordinary characters.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.config import Component, ConfigError, incidental

if TYPE_CHECKING:
    import tokenizers

MAIN_FILE = "tokenizer.json"
_NUM_BYTES = 256


class ByteTokenizer(Component):
    """One id for each byte, and one for end of text. It needs no training."""

    learns = False

    @property
    def name(self) -> str:
        """A short name."""
        return "bytes"

    @property
    def vocab_size(self) -> int:
        """The bytes and end of text."""
        return _NUM_BYTES + 1

    @property
    def end_of_text(self) -> int:
        """The id that ends every document."""
        return _NUM_BYTES

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """One byte for each id, none for end of text."""
        return np.array([1] * _NUM_BYTES + [0], np.int32)

    @property
    def special_tokens(self) -> dict[str, int]:
        """None: every text is ordinary, also `<|endoftext|>`."""
        return {}

    def fingerprint(self) -> str:
        """Returns a constant: there is nothing to configure."""
        return "bytes/1"

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns the bytes of a text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def encode_with_offsets(
        self, text: str, literal: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the bytes of a text, and the character of each."""
        lengths = [len(character.encode()) for character in text]
        starts = np.repeat(np.arange(len(text)), lengths)
        return self.encode(text), np.stack([starts, starts + 1], axis=1)

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Returns the bytes of several texts."""
        return [self.encode(text) for text in texts]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the ids; end of text has none."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        return array[array < _NUM_BYTES].astype(np.uint8).tobytes()

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids; invalid UTF-8 becomes replacement characters."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def fit(self, texts: Iterable[str]) -> None:
        """Does nothing."""

    def save(self, folder: Path) -> None:
        """Writes nothing."""

    def load(self, folder: Path) -> None:
        """Reads nothing."""


class BytePairTokenizer(Component):
    """Byte-level byte-pair encoding (BPE), trained on the training split.

    A small corpus may yield fewer merges than configured. The ids between them and end of text are
    then unused, so that the vocabulary size of a model never depends on data.
    """

    class Config(Component.Config["BytePairTokenizer"]):
        vocab_size: int = 4096
        folder: str = incidental("")
        """The folder of a trained one, such as `tokenizer/` of a run; empty trains a new one."""

    def __init__(self, config: Config) -> None:
        """Checks the size; the tokenizer must be trained or loaded before use."""
        super().__init__(config)
        if config.vocab_size <= _NUM_BYTES:
            raise ConfigError(
                f"{config.locate('vocab_size')}: expected at least {_NUM_BYTES + 1} (every byte "
                f"and end of text), got {config.vocab_size}."
            )
        self._vocab_size = config.vocab_size
        self._trained = Path(config.folder) if config.folder else None
        self._model: tokenizers.Tokenizer | None = None
        self._pieces: list[bytes] = []

    @property
    def learns(self) -> bool:
        """Whether `fit` trains it: not if it is a trained one."""
        return self._trained is None

    @property
    def name(self) -> str:
        """A short name."""
        return f"byte-pair-{self._vocab_size}"

    @property
    def vocab_size(self) -> int:
        """The configured size, however many merges there are."""
        return self._vocab_size

    @property
    def end_of_text(self) -> int:
        """The id that ends every document: the last one."""
        return self._vocab_size - 1

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """The number of bytes of each id; 0 for end of text and for unused ids."""
        self._ready()
        return np.array([len(piece) for piece in self._pieces], np.int32)

    @property
    def special_tokens(self) -> dict[str, int]:
        """None: every text is ordinary, also `<|endoftext|>`."""
        return {}

    def fingerprint(self) -> str:
        """Returns a hash of what decides how a given corpus is tokenized."""
        new = f"byte-pair/1/{self._vocab_size}"
        return new if self._trained is None else f"{new}/{digest_of(self._trained / MAIN_FILE)}"

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns the ids of a text."""
        return np.array(self._ready().encode(text, add_special_tokens=False).ids, np.int32)

    def encode_with_offsets(
        self, text: str, literal: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the ids of a text, and the characters of each."""
        return ids_and_offsets(self._ready().encode(text, add_special_tokens=False))

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Returns the ids of several texts, on all cores."""
        encoded = self._ready().encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the ids; end of text and unused ids have none."""
        self._ready()
        pieces = self._pieces
        return b"".join([pieces[index] for index in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids; invalid UTF-8 becomes replacement characters."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def fit(self, texts: Iterable[str]) -> None:
        """Trains the merges, which depend on the texts and their order alone; or loads them."""
        if self._trained is not None:
            self.load(self._trained)
            return
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=self._vocab_size - 1,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=2,  # a pair that occurs once does not generalize
            show_progress=False,
        )
        model.train_from_iterator(texts, trainer)
        self._adopt(model)

    def save(self, folder: Path) -> None:
        """Writes the merges as JSON, in the format of the `tokenizers` library."""
        model = self._ready()
        if self._trained is None:
            (folder / MAIN_FILE).write_text(model.to_str(), encoding="utf-8")
        elif self._trained.resolve() != folder.resolve():  # the same bytes have the same digest
            shutil.copyfile(self._trained / MAIN_FILE, folder / MAIN_FILE)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        self._adopt(read_file(folder / MAIN_FILE))
        if self._trained is not None:  # a run has its own copy, and needs the other no longer
            self._trained = folder

    def _adopt(self, model: tokenizers.Tokenizer) -> None:
        vocabulary = model.get_vocab()
        if (largest := max(vocabulary.values(), default=0)) >= self.end_of_text:
            raise ConfigError(
                f"{self.config.locate('vocab_size')}: expected at least {largest + 2} for the "
                f"trained tokenizer, got {self._vocab_size}."
            )
        byte_of = {character: value for value, character in enumerate(byte_characters())}
        pieces = [b""] * self._vocab_size
        for token, index in vocabulary.items():
            pieces[index] = bytes(byte_of[character] for character in token)
        self._pieces, self._model = pieces, model

    def _ready(self) -> tokenizers.Tokenizer:
        if self._model is None and self._trained is not None:
            self.load(self._trained)
        if self._model is None:
            raise RuntimeError(
                "BytePairTokenizer is not trained yet: call fit(texts) or load(folder), or use the "
                "tokenizer of an input, which prepares it."
            )
        return self._model


def ids_and_offsets(
    encoding: tokenizers.Encoding,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Returns the ids of an encoding, and the range of characters of each, [tokens, 2]."""
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return np.array(encoding.ids, np.int32), offsets


def digest_of(path: Path) -> str:
    """Returns a hash of a file's content, in sixteen characters."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}). A tokenizer needs a tokenizer.json; "
            "`transformers` writes one with AutoTokenizer.save_pretrained."
        ) from error


def read_file(path: Path) -> tokenizers.Tokenizer:
    """Reads a tokenizer.json."""
    from tokenizers import Tokenizer

    digest_of(path)  # raises a clear error if there is no file
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exceptions
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error


def byte_characters() -> list[str]:
    """Returns the character of each byte in the files of byte-level tokenizers.

    The convention is GPT-2's: a printable Latin-1 byte is itself, and the others are numbered from
    256 on, so that a token is always a printable string.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, next_code = [], _NUM_BYTES
    for value in range(_NUM_BYTES):
        characters.append(chr(value if value in printable else next_code))
        next_code += value not in printable
    return characters
