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
import itertools
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import Config, ConfigError
from dovetail.data.interfaces import (
    BadRecord,
    Corpus,
    HasPreparedData,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.preparation.encoding import join_pieces
from dovetail.data.preparation.pieces import CorpusPiece, pieces_of, with_encoder, with_shards
from dovetail.data.preparation.splits import SPLIT_VERSION, key_of
from dovetail.data.preparation.survey import (
    Survey,
    add_bad_records,
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
from dovetail.data.sources.bad_records import BadRecordCount
from dovetail.data.store import (
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

_NAME_VERSION = 1  # changes when the same corpus gives other tokens; runs know data by its name

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
    return prepare_stores({corpus.name: corpus}, tokenizer, progress)[corpus.name]


def prepare_stores(
    corpora: Mapping[str, Corpus],
    tokenizer: Tokenizer,
    progress: bool = True,
    trained: Path | None = None,
) -> dict[str, tuple[TokenStore, PreparedData]]:
    """Does the same for several corpora that share a tokenizer.

    It is trained on all of them, unless `trained` is the folder of a trained one.
    """
    began = time.monotonic()
    folders = store_folders(corpora, tokenizer, trained)
    stores = {name: _open_if_intact(folder) for name, folder in folders.items()}
    missing = {name: folders[name] for name, store in stores.items() if store is None}
    if missing:
        _check_encoders([corpora[name] for name in missing], tokenizer)
        with Progress(f"preparing {', '.join(missing)}", enabled=progress) as shown:
            stores |= _build_exclusively(missing, folders, corpora, tokenizer, trained, shown)
    found = {name: store for name, store in stores.items() if store is not None}
    for name, store in found.items():
        _check_bad_records(corpora[name], store)
    tokenizer.load(next(iter(found.values())).folder / TOKENIZER)
    seconds = time.monotonic() - began
    return {
        name: (store, _summary(store, tokenizer, name not in missing, seconds))
        for name, store in found.items()
    }


def _check_bad_records(corpus: Corpus, store: TokenStore) -> None:
    """Refuses a store that was prepared when more bad records were allowed than are now."""
    bad = store.meta.report.get("bad_records", 0)
    documents = sum(split.documents for split in store.meta.splits.values())
    examples = [BadRecord(*each) for each in store.meta.report.get("examples", ())]
    allowed = BadRecordCount.of(corpus).allowed
    BadRecordCount(allowed, documents + bad, bad, examples).check(corpus.name)


def store_folders(
    corpora: Mapping[str, Corpus], tokenizer: Tokenizer, trained: Path | None = None
) -> dict[str, Path]:
    """Returns the folder of each store, which need not exist.

    Where a tokenizer is trained on several corpora, the tokens of each depend on all of them.
    """
    prints = {name: corpus.fingerprint() for name, corpus in corpora.items()}
    together: list[str] = []
    if learns(tokenizer) and trained is not None:
        together = list(file_digests(trained).values())
    elif learns(tokenizer) and len(prints) > 1:
        together = sorted(prints.values())
    encoders = {name: _encoder_prints(corpus, tokenizer) for name, corpus in corpora.items()}
    return {
        name: _store_folder(
            corpora[name], tokenizer, (own, tokenizer.fingerprint(), *together, *encoders[name])
        )
        for name, own in prints.items()
    }


def learns(tokenizer: Tokenizer) -> bool:
    """Says whether a tokenizer depends on the texts that it is fitted to."""
    return bool(getattr(tokenizer, "learns", True))


def _encoder_prints(corpus: Corpus, tokenizer: Tokenizer) -> list[str]:
    """Returns the fingerprint of the corpus's own encoder, if it has one."""
    own = with_encoder(corpus)
    return [] if own is None else [own.encoder_fingerprint(tokenizer)]


def _check_encoders(corpora: Sequence[Corpus], tokenizer: Tokenizer) -> None:
    """Refuses an encoder that cannot work, before documents are read."""
    for corpus in corpora:
        if (own := with_encoder(corpus)) is not None:
            own.encoder(tokenizer)


def _store_folder(corpus: Corpus, tokenizer: Tokenizer, prints: Sequence[str]) -> Path:
    content = (str(_NAME_VERSION), str(SPLIT_VERSION), *prints)
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
    missing: Mapping[str, Path],
    folders: Mapping[str, Path],
    corpora: Mapping[str, Corpus],
    tokenizer: Tokenizer,
    trained: Path | None,
    progress: Progress,
) -> dict[str, TokenStore]:
    """Builds the missing stores, unless another process does."""

    def say_waiting() -> None:
        progress.say("waiting for another process that is preparing the same data")

    with contextlib.ExitStack() as stack:
        work: dict[str, _Preparation] = {}
        for name, folder in sorted(missing.items(), key=lambda item: item[1]):  # never crosswise
            stack.enter_context(exclusive(folder, say_waiting))
            with contextlib.suppress(DamagedStoreError):
                TokenStore(folder)  # another process built it in the meantime
                continue
            if folder.exists():
                remove_folder(folder)
            unfinished = stack.enter_context(unfinished_folder(folder))
            work[name] = _Preparation(unfinished, corpora[name], tokenizer, progress)
        for preparation in work.values():
            preparation.survey()
        ready = [folder / TOKENIZER for name, folder in folders.items() if name not in work]
        ready = ready if trained is None else [trained]
        _prepare_tokenizer(list(work.values()), ready, tokenizer, progress)
        for name, preparation in work.items():
            preparation.build(missing[name])
        return {name: TokenStore(folder) for name, folder in missing.items()}


def _prepare_tokenizer(
    work: Sequence[_Preparation],
    ready: Sequence[Path],
    tokenizer: Tokenizer,
    progress: Progress,
) -> None:
    """Trains the tokenizer on all corpora, unless that has been done, and saves it with each."""
    done = [*ready, *(each.tokenizer_folder for each in work if each.has_tokenizer())]
    if done:
        tokenizer.load(done[0])
    elif work:
        size = sum(each.surveyed.bytes for each in work)
        progress.stage("training the tokenizer", min(size, _TRAINING_BYTES), "bytes")
        share = _TRAINING_BYTES / max(size, 1)
        texts = (each.training_texts(share) for each in work)
        tokenizer.fit(itertools.chain.from_iterable(texts))
    for each in work:
        each.save_tokenizer()


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
        self.surveyed = Survey()

    def survey(self) -> None:
        """Does the first pass, and checks what it finds."""
        self.progress.stage("reading", unit="bytes")
        self.pieces = pieces_of(self.corpus)
        this = Pass(SURVEY, self.folder)
        total = sum(piece.size for piece in self.pieces)
        self.surveyed = join_surveys(self._run("reading", this, total), this.ledger)
        check_survey(self.surveyed, self.corpus)

    def build(self, final: Path) -> None:
        """Does the second pass, and makes the store's folder."""
        this = Pass(ENCODE, self.folder, self.surveyed.held_out_limit)
        results = self._run("tokenizing", this, self.surveyed.bytes)
        add_bad_records(self.surveyed, results, self.corpus)
        with new_folder(final) as temporary:
            splits = join_pieces(temporary, this.ledger, results)
            shutil.copytree(self.tokenizer_folder, temporary / TOKENIZER)
            seal(temporary, self._meta(splits))

    def training_texts(self, share: float) -> Iterator[str]:
        """Yields the texts of the training split, or a random share of them."""
        for document in all_documents(self.corpus):
            if key_of(document.name) <= self.surveyed.held_out_limit or not document.text:
                continue
            if share >= 1 or key_of(f"tokenizer/{document.name}") < share * 2**64:
                self.progress.advance(len(document.text.encode("utf-8")))
                yield document.text

    def has_tokenizer(self) -> bool:
        """Says whether a preparation that was killed has trained and saved it."""
        try:
            expected = json.loads(self._digests.read_text())
            return bool(expected == file_digests(self.tokenizer_folder))
        except (OSError, ValueError):
            return False

    def save_tokenizer(self) -> None:
        """Saves the tokenizer for the workers and the store."""
        if not self.has_tokenizer():
            shutil.rmtree(self.tokenizer_folder, ignore_errors=True)
            with atomic_folder(self.tokenizer_folder) as temporary:
                self.tokenizer.save(temporary)
            self._digests.write_text(json.dumps(file_digests(self.tokenizer_folder)))

    @property
    def _digests(self) -> Path:
        return self.folder / f"{TOKENIZER}.json"

    def _run(self, stage: str, this: Pass, total: int) -> list[dict[str, Any]]:
        self.progress.stage(stage, total, "bytes")
        return run_pass(this, self.sources, self.pieces, self.progress.advance)

    def _meta(self, splits: dict[str, SplitSummary]) -> StoreMeta:
        survey, size = self.surveyed, self.tokenizer.vocab_size
        report = {
            "duplicates": survey.duplicates,
            "bad_records": survey.records.bad,
            "problems": survey.records.main_problems(),
            "examples": [(each.name, each.problem) for each in survey.records.examples],
        }
        dtype = token_dtype_for(size).str
        return StoreMeta(self.corpus.name, self.tokenizer.name, size, dtype, splits, {}, report)
