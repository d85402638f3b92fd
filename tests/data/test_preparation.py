"""Preparing in pieces: in parallel, again after a kill, with bad records, with verified blocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.config import ConfigError, import_packages
from dovetail.data import BytePairTokenizer, ByteTokenizer, TokenInput, prepare
from dovetail.data.blocks import BLOCK_BYTES, VerifiedArray, block_checksums
from dovetail.data.preparation import pieces, work
from dovetail.data.preparation.splits import held_out_limit, held_out_names, key_of
from dovetail.data.store import (
    DAMAGED,
    DamagedDataError,
    DamagedStoreError,
    TokenStore,
    data_folder,
)
from dovetail.data.store_listing import list_stores, prune_stores, verify_stores
from tests.data import own_corpus
from tests.data.own_corpus import NumberedTexts


@pytest.fixture
def many(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> TokenInput.Config:
    """Two thousand documents in twenty shards, each a piece."""
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 1)
    return TokenInput.Config(
        corpus=NumberedTexts.Config(shards=20),
        tokenizer=BytePairTokenizer.Config(vocab_size=300),
        sequence_length=16,
        batch_size=4,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def test_pieces_and_processes_change_nothing(
    many: TokenInput.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_packages(["tests.data.own_corpus"])
    in_pieces = contents(prepare(many, progress=False).folder)
    in_another_cache(tmp_path, monkeypatch, "workers")
    monkeypatch.setattr(work, "_MIN_BYTES_FOR_WORKERS", {"survey": 0, "tokens": 0})
    monkeypatch.setattr(own_corpus, "readers", [])
    assert contents(prepare(many, progress=False).folder) == in_pieces
    assert own_corpus.readers.count("survey") == 0, "workers did that"
    in_another_cache(tmp_path, monkeypatch, "whole")
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 2**30)
    assert contents(prepare(many, progress=False).folder) == in_pieces


KILLED = """
import os, sys
from dovetail.config import import_packages
from dovetail.data import BytePairTokenizer, TokenInput, prepare
from dovetail.data.preparation import pieces, work
import_packages(["tests.data.own_corpus"])
from tests.data.own_corpus import NumberedTexts

pieces._PIECE_BYTES = 1
if sys.argv[1] == "workers":
    work._MIN_BYTES_FOR_WORKERS = dict.fromkeys(work._MIN_BYTES_FOR_WORKERS, 0)
config = TokenInput.Config(
    corpus=NumberedTexts.Config(shards=20, seconds_per_shard=0.05),
    tokenizer=BytePairTokenizer.Config(vocab_size=300), sequence_length=16, batch_size=4)
prepare(config, progress=False)
"""


@pytest.mark.parametrize("how", ["inline", "workers"])
def test_a_killed_preparation_continues_with_what_is_missing(
    many: TokenInput.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    many.corpus.set(seconds_per_shard=0.05)
    process = subprocess.Popen([sys.executable, "-c", KILLED, how])
    while len(list(data_folder().glob("*.unfinished/tokens-*.json"))) < 5:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # its workers end when they find nobody to answer
    [unfinished] = data_folder().glob("*.unfinished")
    done = {path.name for path in unfinished.glob("tokens-*.json")}
    assert 5 <= len(done) < 20
    damaged = unfinished / min(done).replace(".json", ".train")
    damaged.write_bytes(damaged.read_bytes()[:-1])  # a piece that does not match is done again
    monkeypatch.setattr(own_corpus, "readers", [])
    folder = prepare(many, progress=False).folder
    assert own_corpus.readers.count("shard") == 20 - len(done) + 1, "the survey is not repeated"
    assert [path.name for path in data_folder().iterdir() if path.name != "locks"] == [folder.name]
    in_another_cache(tmp_path, monkeypatch, "undisturbed")
    assert contents(prepare(many, progress=False).folder) == contents(folder)


def test_a_worker_that_dies_is_named(
    many: TokenInput.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_packages(["tests.data.own_corpus"])
    monkeypatch.setattr(work, "_MIN_BYTES_FOR_WORKERS", {"survey": 0, "tokens": 0})
    many.corpus.set(dies_in_shard=7)
    with pytest.raises(
        ChildProcessError, match=r"ended by signal 9 while it read shard-7\..*memory"
    ):
        prepare(many, progress=False)


def test_a_mistake_in_a_worker_is_the_same_error(
    many: TokenInput.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_packages(["tests.data.own_corpus"])
    monkeypatch.setattr(work, "_MIN_BYTES_FOR_WORKERS", {"survey": 0, "tokens": 0})
    many.corpus.set(fails_in_shard=7)
    with pytest.raises(ConfigError, match="shard-7 is unreadable"):
        prepare(many, progress=False)
    assert not list(data_folder().glob("*.unfinished"))


def test_a_corpus_of_a_script_is_prepared_in_this_process(
    many: TokenInput.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(NumberedTexts):
        """Another process cannot import a class of a function."""

    monkeypatch.setattr(work, "_MIN_BYTES_FOR_WORKERS", {"survey": 0, "tokens": 0})
    monkeypatch.setattr(Own, "__module__", "__main__")
    prepared = prepare(many.clone(corpus=Own.Config(shards=4)), progress=False)
    assert prepared.documents == 400


# Bad records and duplicates.


def test_bad_records_are_refused_with_examples(many: TokenInput.Config) -> None:
    many.corpus.set(bad_every=50)
    message = (
        r"corpus numbered: 40 of 2,040 records are bad, and max_bad=0 allows 0\.\n"
        r"  numbered#0\.bad: no column 'text'\n.*"
    )
    with pytest.raises(ConfigError, match=message):
        prepare(many, progress=False)


def test_bad_records_within_the_share_are_skipped_and_counted(many: TokenInput.Config) -> None:
    many.corpus.set(bad_every=50, max_bad=0.02)
    prepared = prepare(many, progress=False)
    assert prepared.documents == 2000
    assert prepared.report["bad_records"] == 40
    assert prepared.report["problems"] == {"no column 'text'": 40}
    assert len(prepared.report["examples"]) == 3
    assert prepare(many, progress=False).report == prepared.report, "a later start knows it, too"
    many.corpus.set(max_bad=0.001)
    with pytest.raises(ConfigError, match=r"40 of 2,040 records are bad, and max_bad=0\.001"):
        prepare(many, progress=False)


def test_duplicates_are_counted(many: TokenInput.Config) -> None:
    many.corpus.set(distinct=150)
    assert prepare(many, progress=False).report["duplicates"] == 2000 - 150


def test_documents_that_are_tokenized_already(many: TokenInput.Config) -> None:
    many.set(tokenizer=ByteTokenizer.Config())
    many.corpus.set(as_ids=True)
    ids = contents(prepare(many, progress=False).folder)
    texts = contents(prepare(many.clone(corpus=NumberedTexts.Config(shards=20))).folder)
    assert ids["train.tokens"] == texts["train.tokens"]
    many.set(tokenizer=BytePairTokenizer.Config(vocab_size=300))
    many.corpus.set(offset=5000)
    with pytest.raises(ConfigError, match=r"token ids from \d+ to \d+, but the tokenizer has 300"):
        prepare(many, progress=False)


# The split.


def test_the_limit_holds_out_the_names_that_it_always_did() -> None:
    names = [f"file{number}" for number in range(500)]
    keys = np.array([key_of(name) for name in names], np.uint64)
    by_limit = {name for name in names if key_of(name) <= held_out_limit(keys)}
    assert by_limit == held_out_names(names) == {n for n in names if key_of(n) / 2**64 < 0.05}


# Blocks.


def test_a_block_is_verified_when_it_is_first_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    values = np.arange(5 * BLOCK_BYTES // 2 + 7, dtype="<u2")
    values.tofile(file)
    checksums = block_checksums(file)
    assert len(checksums) == 6
    with file.open("r+b") as stream:
        stream.seek(2 * BLOCK_BYTES + 10)
        stream.write(b"\xff\xff\xff")
    mapped = np.memmap(file, "<u2", mode="r")
    array = VerifiedArray(mapped, checksums, lambda offset: DamagedDataError(f"at {offset}"))
    assert len(array) == len(values)
    per_block = BLOCK_BYTES // 2
    index = np.array([[0, 5], [per_block, len(values) - 1]])
    np.testing.assert_array_equal(array[index], values[index])
    np.testing.assert_array_equal(array[: 2 * per_block], values[: 2 * per_block])
    np.testing.assert_array_equal(array[-5:], values[-5:])
    assert array[np.zeros((0, 3), int)].shape == (0, 3)
    for damaged in (slice(0, 2 * per_block + 1), np.array([3, 2 * per_block])):
        with pytest.raises(DamagedDataError, match=f"at {2 * BLOCK_BYTES}"):
            array[damaged]
    with pytest.raises(DamagedDataError):
        array.verify_all()


def test_damage_in_a_large_store_is_found_and_the_data_prepared_again(
    many: TokenInput.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.data.store._VERIFIED_AT_ONCE", 0)
    many.set(tokenizer=ByteTokenizer.Config())
    good = many.build()
    batches = [good.batch(step).tokens for step in range(20)]
    folder = good.prepare().folder
    file = folder / "train.tokens"
    data = bytearray(file.read_bytes())
    assert len(data) > 2 * BLOCK_BYTES
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    TokenStore(folder)  # opening it is cheap, and finds nothing
    assert "does not match its checksum" in str(verify_stores()[folder])
    built = many.build()
    message = r"train\.tokens does not match its checksum at byte"
    with pytest.raises(DamagedDataError, match=message):
        _ = [built.batch(step) for step in range(2000)]
    assert (folder / DAMAGED).exists()
    with pytest.raises(DamagedStoreError, match="at byte"):
        TokenStore(folder)
    again = many.build()
    with pytest.warns(UserWarning, match="is damaged and will be rebuilt"):
        again.prepare(progress=False)
    for step, tokens in enumerate(batches):
        np.testing.assert_array_equal(again.batch(step).tokens, tokens)


def test_a_store_of_the_first_format_is_still_read(many: TokenInput.Config) -> None:
    import zlib

    prepared = prepare(many, progress=False)
    meta = json.loads((prepared.folder / "meta.json").read_text())
    for name in list(meta["files"]):
        data = (prepared.folder / name).read_bytes()
        meta["files"][name] = (len(data), zlib.crc32(data))
        if name.endswith(".blocks"):
            (prepared.folder / name).unlink()
            del meta["files"][name]
    meta["format"] = 1
    del meta["report"]
    (prepared.folder / "meta.json").write_text(json.dumps(meta))
    assert TokenStore(prepared.folder).meta.splits == prepared.splits


# Listing and pruning.


def test_stores_are_listed_and_pruned(many: TokenInput.Config) -> None:
    assert list_stores() == []
    first = prepare(many, progress=False)
    second = prepare(many.clone(tokenizer=ByteTokenizer.Config()), progress=False)
    (data_folder() / "gone-bytes-0123.unfinished").mkdir()
    (data_folder() / "gone-bytes-0123.unfinished" / "tokens-00000.train").write_bytes(b"12345")
    by_name = {entry.folder.name: entry for entry in list_stores()}
    assert by_name[first.folder.name].documents == first.documents
    assert by_name[first.folder.name].tokens == first.tokens
    assert by_name["gone-bytes-0123.unfinished"].state == "unfinished"
    assert by_name["gone-bytes-0123.unfinished"].bytes == 5
    long_ago = time.time() - 40 * 86400
    os.utime(second.folder / "last-used", (long_ago, long_ago))
    assert [entry.folder for entry in prune_stores(30, dry_run=True)] == [second.folder]
    assert second.folder.exists()
    assert [entry.folder for entry in prune_stores(30)] == [second.folder]
    assert sorted(entry.folder.name for entry in list_stores()) == sorted(
        [first.folder.name, "gone-bytes-0123.unfinished"]
    )
    prune_stores(0)
    assert list_stores() == []


def test_what_is_being_prepared_is_not_pruned(many: TokenInput.Config) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, "inline"])
    try:
        while not list(data_folder().glob("*.unfinished/tokens-*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        assert prune_stores(0) == []
    finally:
        assert process.wait() == 0
