"""Preparing data: tokenizes a corpus into a token store, once.

The folder of a store is named by a fingerprint of everything that its content depends on. An
existing folder can be used as it is, and a changed corpus or tokenizer gets a new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dovetail.config import Config, ConfigError
from dovetail.data.interfaces import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    Corpus,
    Document,
    HasPreparedData,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.store import (
    FORMAT,
    STARTS_DTYPE,
    TOKENIZER,
    DamagedStoreError,
    StoreMeta,
    TokenStore,
    data_folder,
    exclusive,
    new_folder,
    size_and_checksum,
    token_dtype_for,
    write_meta,
)
from dovetail.utils import Progress, remove_folder

# Text per call of the tokenizer: enough for all cores, and little memory.
_BYTES_PER_CALL = 2**20

HELD_OUT_FRACTION = 0.05
SPLIT_VERSION = 1


def prepare(source: Input | Config[Input], progress: bool = True) -> PreparedData:
    """Prepares the data of an input or of an input's config, and returns a summary.

    `dovetail data prepare` calls this. Building an input does no disk work.
    """
    built = source.build() if isinstance(source, Config) else source
    if not isinstance(built, HasPreparedData):
        raise ConfigError(f"input: {type(built).__name__} has no data to prepare.")
    return built.prepare(progress)


def open_store(folder: Path, tokenizer: Tokenizer) -> tuple[TokenStore, PreparedData]:
    """Opens a token store by its folder, without its corpus, and loads the tokenizer."""
    store = TokenStore(folder)
    tokenizer.load(folder / TOKENIZER)
    return store, PreparedData(folder, tokenizer.vocab_size, store.meta.splits, True, 0.0)


def prepare_store(
    corpus: Corpus, tokenizer: Tokenizer, progress: bool = True
) -> tuple[TokenStore, PreparedData]:
    """Opens the token store of a corpus and a tokenizer; builds it first if needed.

    Loads the tokenizer, too. A damaged store is rebuilt, with a warning.
    """
    began = time.monotonic()
    folder = store_folder(corpus, tokenizer)
    store = _open_if_intact(folder)
    reused = store is not None
    if store is None:
        with Progress(f"preparing {corpus.name}", enabled=progress) as shown:
            store = _build_exclusively(folder, corpus, tokenizer, shown)
    tokenizer.load(store.folder / TOKENIZER)
    seconds = time.monotonic() - began
    return store, PreparedData(folder, tokenizer.vocab_size, store.meta.splits, reused, seconds)


def store_folder(corpus: Corpus, tokenizer: Tokenizer) -> Path:
    """Returns the folder of a store, which need not exist."""
    content = (str(FORMAT), str(SPLIT_VERSION), corpus.fingerprint(), tokenizer.fingerprint())
    fingerprint = hashlib.blake2b("\n".join(content).encode(), digest_size=6).hexdigest()
    return data_folder() / f"{corpus.name}-{tokenizer.name}-{fingerprint}"


def held_out_names(names: Collection[str], fraction: float = HELD_OUT_FRACTION) -> frozenset[str]:
    """Returns the names of the held-out documents: about `fraction` of them.

    A document's name decides, not its position in the corpus. So the split is the same for every
    tokenizer and on every machine, and new documents move no others (but in tiny corpora).

    Of two or more documents, at least one is held out and at least one is not, so that small
    corpora can be evaluated. A single document is always for training.
    """
    draws = sorted((draw(name), name) for name in set(names))
    count = sum(value < fraction for value, _ in draws)
    count = min(max(count, 1), len(draws) - 1)
    return frozenset(name for _, name in draws[: max(count, 0)])


def draw(name: str) -> float:
    """Returns the hash of a name as a number in [0, 1)."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _open_if_intact(folder: Path) -> TokenStore | None:
    if not folder.exists():
        return None
    try:
        return TokenStore(folder)
    except DamagedStoreError as error:
        warnings.warn(f"prepared data is damaged and will be rebuilt: {error}", stacklevel=2)
        return None


def _build_exclusively(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress
) -> TokenStore:
    def say_waiting() -> None:
        progress.say("waiting for another process that is preparing the same data")

    with exclusive(folder, say_waiting):
        with contextlib.suppress(DamagedStoreError):
            return TokenStore(folder)  # another process built it in the meantime
        if folder.exists():
            remove_folder(folder)
        with new_folder(folder) as unfinished:
            _build(unfinished, corpus, tokenizer, progress)
        return TokenStore(folder)


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress) -> None:
    sizes = _document_sizes(corpus, progress)
    held_out = held_out_names(sizes)

    progress.stage("training the tokenizer", sum(sizes.values()), "bytes")
    tokenizer.fit(_training_texts(corpus, held_out, progress))
    (folder / TOKENIZER).mkdir()
    tokenizer.save(folder / TOKENIZER)

    progress.stage("tokenizing", sum(sizes.values()), "bytes")
    splits = _write_splits(folder, corpus, tokenizer, held_out, progress)
    files = {
        path.relative_to(folder).as_posix(): size_and_checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    dtype = token_dtype_for(tokenizer.vocab_size).str
    meta = StoreMeta(corpus.name, tokenizer.name, tokenizer.vocab_size, dtype, splits, files)
    write_meta(folder, meta)


def _document_sizes(corpus: Corpus, progress: Progress) -> dict[str, int]:
    """Returns the documents' sizes. Reads all of them, so that errors come before any work."""
    progress.stage("reading", unit="bytes")
    sizes: dict[str, int] = {}
    for document in _nonempty(corpus):
        if document.name in sizes:
            raise ConfigError(
                f"corpus {corpus.name}: two documents are named {document.name!r}. The split "
                "depends on the names, so they must be unique."
            )
        sizes[document.name] = len(document.text.encode("utf-8"))
        progress.advance(sizes[document.name])
    if not sizes:
        raise ConfigError(
            f"corpus {corpus.name}: it has no text: all its documents are empty. "
            "Point the corpus at files with text."
        )
    return sizes


def _nonempty(corpus: Corpus) -> Iterator[Document]:
    return (document for document in corpus.documents() if document.text)


def _training_texts(corpus: Corpus, held_out: frozenset[str], progress: Progress) -> Iterator[str]:
    for document in _nonempty(corpus):
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
        for documents in _batches(_nonempty(corpus)):
            encoded = tokenizer.encode_all([document.text for document in documents])
            for document, ids in zip(documents, encoded, strict=True):
                size = len(document.text.encode("utf-8"))
                split = HELD_OUT if document.name in held_out else TRAIN
                writers[split].add(np.append(ids, tokenizer.end_of_text), size)
                progress.advance(size)
    for name, writer in writers.items():
        (folder / f"{name}.starts").write_bytes(np.array(writer.starts, STARTS_DTYPE).tobytes())
    return {name: writer.summary() for name, writer in writers.items()}


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BYTES_PER_CALL:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
