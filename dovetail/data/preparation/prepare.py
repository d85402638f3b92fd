"""Preparing data: tokenizes a corpus into a token store, once.

The folder of a store is named by a fingerprint of everything that its content depends on. An
existing folder can be used as it is, and a changed corpus or tokenizer gets a new one.

A corpus is prepared in pieces, in two passes: a survey, then the token ids. Between them the
tokenizer is trained. What is done is kept in a folder beside that of the store, so that a
preparation that was killed goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.config import Config, ConfigError
from dovetail.data.interfaces import (
    Corpus,
    HasPreparedData,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.preparation.encoding import join_pieces
from dovetail.data.preparation.pieces import CorpusPiece, pieces_of, with_shards
from dovetail.data.preparation.splits import SPLIT_VERSION, key_of
from dovetail.data.preparation.survey import (
    Survey,
    all_documents,
    check_survey,
    join_surveys,
)
from dovetail.data.preparation.work import (
    ENCODE,
    SURVEY,
    Pass,
    Sources,
    configs_for_workers,
    run_pass,
)
from dovetail.data.store import (
    FORMAT,
    TOKENIZER,
    DamagedStoreError,
    StoreMeta,
    TokenStore,
    data_folder,
    exclusive,
    new_folder,
    seal,
    token_dtype_for,
    unfinished_folder,
)
from dovetail.utils import Progress, atomic_folder, file_digests, remove_folder

# A tokenizer is trained on this much text: more changes few merges, and takes memory and hours.
_TRAINING_BYTES = 256 * 2**20


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
    return store, _summary(store, tokenizer, True, 0.0)


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
    return store, _summary(store, tokenizer, reused, time.monotonic() - began)


def store_folder(corpus: Corpus, tokenizer: Tokenizer) -> Path:
    """Returns the folder of a store, which need not exist."""
    content = (str(FORMAT), str(SPLIT_VERSION), corpus.fingerprint(), tokenizer.fingerprint())
    fingerprint = hashlib.blake2b("\n".join(content).encode(), digest_size=6).hexdigest()
    return data_folder() / f"{corpus.name}-{tokenizer.name}-{fingerprint}"


def _summary(store: TokenStore, tokenizer: Tokenizer, reused: bool, seconds: float) -> PreparedData:
    meta = store.meta
    return PreparedData(
        store.folder, tokenizer.vocab_size, meta.splits, reused, seconds, meta.report
    )


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
        with unfinished_folder(folder) as unfinished:
            _Preparation(unfinished, corpus, tokenizer, progress).build(folder)
        return TokenStore(folder)


class _Preparation:
    """One preparation, in a folder that outlives a kill."""

    def __init__(
        self, folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress
    ) -> None:
        self.folder, self.progress = folder, progress
        self.corpus, self.tokenizer = with_shards(corpus), tokenizer
        self.tokenizer_folder = folder / TOKENIZER
        configs = configs_for_workers(corpus, tokenizer)
        self.sources = Sources(self.corpus, tokenizer, configs, self.tokenizer_folder)
        self.pieces: list[CorpusPiece] = []

    def build(self, final: Path) -> None:
        """Makes the store's folder."""
        self.progress.stage("reading", unit="bytes")
        self.pieces = pieces_of(self.corpus)
        survey = self._survey()
        self._prepare_tokenizer(survey)
        results = self._run("tokenizing", Pass(ENCODE, self.folder, survey.held_out_limit), survey)
        with new_folder(final) as temporary:
            splits = join_pieces(temporary, Pass(ENCODE, self.folder).ledger, results)
            shutil.copytree(self.tokenizer_folder, temporary / TOKENIZER)
            seal(temporary, self._meta(survey, splits))

    def _survey(self) -> Survey:
        this = Pass(SURVEY, self.folder)
        survey = join_surveys(self._run("reading", this), this.ledger)
        check_survey(survey, self.corpus)
        return survey

    def _run(self, stage: str, this: Pass, survey: Survey | None = None) -> list[dict[str, Any]]:
        total = sum(piece.size for piece in self.pieces) if survey is None else survey.bytes
        self.progress.stage(stage, total, "bytes")
        return run_pass(this, self.sources, self.pieces, self.progress.advance)

    def _prepare_tokenizer(self, survey: Survey) -> None:
        """Trains the tokenizer, unless a preparation before has done that."""
        if self._has_tokenizer():
            self.tokenizer.load(self.tokenizer_folder)
            return
        shutil.rmtree(self.tokenizer_folder, ignore_errors=True)
        total = min(survey.bytes, _TRAINING_BYTES)
        self.progress.stage("training the tokenizer", total, "bytes")
        self.tokenizer.fit(self._training_texts(survey))
        with atomic_folder(self.tokenizer_folder) as temporary:
            self.tokenizer.save(temporary)
        self._digests.write_text(json.dumps(file_digests(self.tokenizer_folder)))

    @property
    def _digests(self) -> Path:
        return self.folder / f"{TOKENIZER}.json"

    def _has_tokenizer(self) -> bool:
        try:
            expected = json.loads(self._digests.read_text())
            return bool(expected == file_digests(self.tokenizer_folder))
        except (OSError, ValueError):
            return False

    def _training_texts(self, survey: Survey) -> Iterator[str]:
        """Yields the texts of the training split, or a random share of them if there are many."""
        share = _TRAINING_BYTES / max(survey.bytes, 1)
        for document in all_documents(self.corpus):
            if key_of(document.name) <= survey.held_out_limit or not document.text:
                continue
            if share >= 1 or key_of(f"tokenizer/{document.name}") < share * 2**64:
                self.progress.advance(len(document.text.encode("utf-8")))
                yield document.text

    def _meta(self, survey: Survey, splits: dict[str, SplitSummary]) -> StoreMeta:
        report = {
            "duplicates": survey.duplicates,
            "bad_records": survey.bad,
            "problems": dict(survey.problems),
            "examples": survey.examples,
        }
        size = self.tokenizer.vocab_size
        dtype = token_dtype_for(size).str
        return StoreMeta(self.corpus.name, self.tokenizer.name, size, dtype, splits, {}, report)
