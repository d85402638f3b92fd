"""Preparing data: from a corpus and a tokenizer to a token store, once.

The store's folder is named by a fingerprint of everything that decides its content, so what is
found there can be used as it is, and a changed corpus or tokenizer gets a folder of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dovetail.config import Config, ConfigError
from dovetail.data.folders import data_folder, new_folder, only_maker_of, remove_folder
from dovetail.data.interfaces import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    Corpus,
    Document,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.progress import Progress
from dovetail.data.split import SPLIT_VERSION, held_out_names
from dovetail.data.store import (
    FORMAT,
    STARTS_DTYPE,
    TOKENIZER,
    DamagedStoreError,
    StoreMeta,
    TokenStore,
    file_account,
    token_dtype_for,
    write_meta,
)

# Tokenizers are handed so much text at a time: enough for all cores, little enough for any memory.
_BYTES_AT_A_TIME = 2**20


def prepare(source: Input | Config[Input], progress: bool = True) -> PreparedData:
    """Does the disk work of an input, or of the input that a config describes, and tells of it.

    This is what `dovetail data prepare` calls. Building an input does no disk work of its own.
    """
    built = source.build() if isinstance(source, Config) else source
    return built.prepare(progress)


def prepare_store(
    corpus: Corpus, tokenizer: Tokenizer, progress: bool = True
) -> tuple[TokenStore, PreparedData]:
    """Opens the store of a corpus and a tokenizer, building it first where needed.

    Leaves the tokenizer ready to use. A damaged store is built anew, with a warning.
    """
    began = time.monotonic()
    folder = store_folder(corpus, tokenizer)
    store = _open_if_whole(folder)
    reused = store is not None
    if store is None:
        with Progress(f"preparing {corpus.name}", progress) as shown:
            store = _build_alone(folder, corpus, tokenizer, shown)
    tokenizer.load(store.folder / TOKENIZER)
    seconds = time.monotonic() - began
    return store, PreparedData(folder, tokenizer.vocab_size, store.meta.splits, reused, seconds)


def store_folder(corpus: Corpus, tokenizer: Tokenizer) -> Path:
    """Returns the folder of a store, whether or not it is there."""
    parts = (str(FORMAT), str(SPLIT_VERSION), corpus.fingerprint(), tokenizer.fingerprint())
    fingerprint = hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()
    return data_folder() / f"{corpus.name}-{tokenizer.name}-{fingerprint}"


def _open_if_whole(folder: Path) -> TokenStore | None:
    if not folder.exists():
        return None
    try:
        return TokenStore(folder)
    except DamagedStoreError as error:
        warnings.warn(f"prepared data is damaged and is built again: {error}", stacklevel=2)
        return None


def _build_alone(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress
) -> TokenStore:
    def say_that_we_wait() -> None:
        progress.say("waiting for another process that is preparing the same data")

    with only_maker_of(folder, say_that_we_wait):
        with contextlib.suppress(DamagedStoreError):
            return TokenStore(folder)  # another process made it in the meantime
        if folder.exists():
            remove_folder(folder)
        with new_folder(folder) as unfinished:
            _build(unfinished, corpus, tokenizer, progress)
        return TokenStore(folder)


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress) -> None:
    sizes = _survey(corpus, progress)
    held_out = held_out_names(sizes)

    progress.stage("learning the vocabulary", sum(sizes.values()))
    tokenizer.fit(_training_texts(corpus, held_out, progress))
    (folder / TOKENIZER).mkdir()
    tokenizer.save(folder / TOKENIZER)

    progress.stage("tokenizing", sum(sizes.values()))
    splits = _write_splits(folder, corpus, tokenizer, held_out, progress)
    files = {
        path.relative_to(folder).as_posix(): file_account(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    dtype = token_dtype_for(tokenizer.vocab_size).str
    meta = StoreMeta(corpus.name, tokenizer.name, tokenizer.vocab_size, dtype, splits, files)
    write_meta(folder, meta)


def _survey(corpus: Corpus, progress: Progress) -> dict[str, int]:
    """Reads the whole corpus once, so that an unreadable document is found before any work."""
    progress.stage("reading", 0)
    sizes: dict[str, int] = {}
    for document in _with_text(corpus):
        if document.name in sizes:
            raise ConfigError(
                f"corpus {corpus.name}: two documents are named {document.name!r}. Names decide "
                "the split, so each document needs one of its own."
            )
        sizes[document.name] = len(document.text.encode("utf-8"))
        progress.advance(sizes[document.name])
    if not sizes:
        raise ConfigError(
            f"corpus {corpus.name}: there is no text in it; all its documents are empty. "
            "Point the corpus at files that hold text."
        )
    return sizes


def _with_text(corpus: Corpus) -> Iterator[Document]:
    return (document for document in corpus.documents() if document.text)


def _training_texts(corpus: Corpus, held_out: frozenset[str], progress: Progress) -> Iterator[str]:
    for document in _with_text(corpus):
        progress.advance(len(document.text.encode("utf-8")))
        if document.name not in held_out:
            yield document.text


def _write_splits(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    held_out: frozenset[str],
    progress: Progress,
) -> dict[str, SplitSummary]:
    dtype = token_dtype_for(tokenizer.vocab_size)
    with contextlib.ExitStack() as stack:
        writers = {
            name: _SplitWriter(stack.enter_context((folder / f"{name}.tokens").open("wb")), dtype)
            for name in SPLITS
        }
        for documents in _portions(_with_text(corpus)):
            encoded = tokenizer.encode_all([document.text for document in documents])
            for document, ids in zip(documents, encoded, strict=True):
                size = len(document.text.encode("utf-8"))
                split = HELD_OUT if document.name in held_out else TRAIN
                writers[split].add(np.append(ids, tokenizer.end_of_text), size)
                progress.advance(size)
    for name, writer in writers.items():
        (folder / f"{name}.starts").write_bytes(np.array(writer.starts, STARTS_DTYPE).tobytes())
    return {name: writer.summary() for name, writer in writers.items()}


def _portions(documents: Iterable[Document]) -> Iterator[list[Document]]:
    portion: list[Document] = []
    size = 0
    for document in documents:
        portion.append(document)
        size += len(document.text)
        if size >= _BYTES_AT_A_TIME:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class _SplitWriter:
    """Appends documents to the token file of one split."""

    def __init__(self, stream: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._write: Callable[[bytes], int] = stream.write
        self._dtype = dtype
        self._bytes = 0
        self._tokens = 0
        self.starts: list[int] = []

    def add(self, ids: Any, size: int) -> None:
        self.starts.append(self._tokens)
        self._write(ids.astype(self._dtype).tobytes())
        self._tokens += len(ids)
        self._bytes += size

    def summary(self) -> SplitSummary:
        return SplitSummary(len(self.starts), self._bytes, self._tokens)
