"""What is on disk after preparing: all of it or nothing, whatever happens on the way."""

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dovetail.config import ConfigError
from dovetail.data import BytePairTokenizer, ByteTokenizer, TextFiles, TokenInput, prepare
from dovetail.data.preparation.splits import held_out_names
from dovetail.data.store import (
    FORMAT,
    UNFINISHED,
    DamagedStoreError,
    DiskFullError,
    TokenStore,
    data_folder,
)
from tests.data.conftest import TEXTS


def stores(unfinished=True):
    """Returns the names of everything in the data folder but the lock files."""
    names = sorted(entry.name for entry in data_folder().iterdir() if entry.name != "locks")
    return [name for name in names if unfinished or not name.endswith(UNFINISHED)]


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_summary_of_prepared_data(small_input):
    prepared = prepare(small_input, progress=False)
    sizes = {name: len(text.encode()) for name, text in TEXTS.items()}
    held_out = held_out_names(TEXTS)
    assert prepared.documents == len(TEXTS)
    assert prepared.bytes == sum(sizes.values())
    assert prepared.tokens == sum(sizes.values()) + len(TEXTS)
    assert prepared.vocabulary == 257
    assert prepared.splits["held_out"].documents == len(held_out)
    assert prepared.splits["held_out"].bytes == sum(sizes[name] for name in held_out)
    assert prepared.folder.parent == data_folder()
    assert re.fullmatch(r"texts-bytes-[0-9a-f]{12}", prepared.folder.name)
    assert not prepared.reused


def test_the_second_time_it_is_found(small_input):
    first = prepare(small_input, progress=False)
    before = contents(first.folder)
    second = prepare(small_input.build(), progress=False)
    assert second.reused
    assert second.splits == first.splits
    assert contents(second.folder) == before


def test_documents_are_stored_completely_and_in_order(small_input):
    store = TokenStore(prepare(small_input, progress=False).folder)
    tokenizer = ByteTokenizer.Config().build()
    held_out = held_out_names(TEXTS)
    for split, wanted in (("train", set(TEXTS) - held_out), ("held_out", held_out)):
        found = store.split(split)
        ends = [*found.starts[1:], len(found.tokens)]
        documents = [found.tokens[a:b] for a, b in zip(found.starts, ends, strict=True)]
        assert all(document[-1] == 256 for document in documents)
        texts = [tokenizer.decode(document) for document in documents]
        assert texts == [TEXTS[name] for name in sorted(wanted)]


def test_the_split_is_the_same_for_every_tokenizer(small_input):
    first = prepare(small_input, progress=False)
    other = small_input.clone(tokenizer=BytePairTokenizer.Config(vocab_size=270))
    second = prepare(other, progress=False)
    assert first.folder != second.folder
    for split in ("train", "held_out"):
        assert first.splits[split].bytes == second.splits[split].bytes


def test_a_tokenizer_learns_from_the_training_split_alone(small_input, texts):
    seen = []

    class Watched(ByteTokenizer):
        def fit(self, texts):
            seen.extend(texts)

    prepare(small_input.clone(tokenizer=Watched.Config()), progress=False)
    assert sorted(seen) == sorted(TEXTS[name] for name in set(TEXTS) - held_out_names(TEXTS))


def test_changed_text_is_prepared_anew(small_input, texts):
    first = prepare(small_input, progress=False)
    (texts / "one.txt").write_text("something else")
    second = prepare(small_input, progress=False)
    assert first.folder != second.folder
    assert not second.reused


def test_a_large_vocabulary_has_wider_tokens(small_input):
    config = small_input.clone(tokenizer=BytePairTokenizer.Config(vocab_size=2**16 + 1))
    store = TokenStore(prepare(config, progress=False).folder)
    assert store.split("train").tokens.dtype == "uint32"
    assert store.split("train").tokens[-1] == 2**16


# Bad corpora leave nothing behind.


def test_empty_and_missing_corpora_write_nothing(small_input, texts, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").touch()
    (texts / "bad.txt").write_bytes(b"\xff")
    for files, message in (
        ("missing", "there is no file or folder"),
        ("empty", "no file in .*empty matches"),
        ("blank.txt", "corpus blank-txt: it has no text"),
        ("texts", r"bad\.txt: not UTF-8"),
    ):
        config = small_input.clone(corpus=TextFiles.Config(files=str(tmp_path / files)))
        with pytest.raises(ConfigError, match=message):
            prepare(config, progress=False)
    assert stores() == []


def test_two_documents_of_one_name_are_refused(small_input):
    class Twice(TextFiles):
        def shards(self):
            return [*super().shards(), *super().shards()]

    corpus = Twice.Config(files=small_input.corpus.files)
    with pytest.raises(ConfigError, match=r"two documents are named 'deeper/four\.txt'"):
        prepare(small_input.clone(corpus=corpus), progress=False)
    assert stores() == []


def test_a_single_document_trains_but_has_nothing_held_out(small_input, texts):
    config = small_input.clone(corpus=TextFiles.Config(files=str(texts / "one.txt")))
    built = config.build()
    assert built.batch(0).tokens.shape == (4, 16)
    with pytest.raises(
        ConfigError, match=r"held_out split is empty.*single document.*passage_bytes"
    ):
        _ = built.held_out().num_batches


# Damage.


@pytest.mark.parametrize("name", ["meta.json", "train.tokens", "held_out.starts", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut", "removed", "changed"])
def test_a_damaged_store_is_refused_and_then_rebuilt(small_input, name, damage):
    small_input.set(tokenizer=BytePairTokenizer.Config(vocab_size=270))
    folder = prepare(small_input, progress=False).folder
    before = contents(folder)
    [path] = folder.rglob(name)
    if damage == "removed":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-3] if damage == "cut" else b"[" + data[1:])
    with pytest.raises(DamagedStoreError, match=re.escape(str(path))):
        TokenStore(folder)
    with pytest.warns(UserWarning, match="is damaged and will be rebuilt: .*" + re.escape(name)):
        prepared = prepare(small_input, progress=False)
    assert not prepared.reused
    assert contents(folder) == before
    assert stores() == [folder.name]


def test_a_store_of_another_format_is_refused(small_input):
    folder = prepare(small_input, progress=False).folder
    meta = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(meta.replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(DamagedStoreError, match=f"is of format 99, not {FORMAT}"):
        TokenStore(folder)


# A full disk, no permission.


def test_a_full_disk_is_explained_and_leaves_no_store(small_input):
    class FullDisk(ByteTokenizer):
        def save(self, folder):
            (folder / "half").write_text("written")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = r"the disk is full: writing .*texts-bytes.*Free some space"
    with pytest.raises(DiskFullError, match=message):
        prepare(small_input.clone(tokenizer=FullDisk.Config()), progress=False)
    assert stores(unfinished=False) == []


def test_a_cache_that_cannot_be_written_is_explained(small_input, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot write prepared data to .*Set XDG_CACHE_HOME"):
        prepare(small_input, progress=False)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert data_folder() == tmp_path / ".cache/dovetail/data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert data_folder() == tmp_path / "c/dovetail/data"


# Several processes, and killed ones.

SLOW = """
import sys, time
from dovetail.data import BytePairTokenizer, TextFiles, TokenInput, prepare

stage, files = sys.argv[1:]

def stop_here():
    print("here", flush=True)
    sys.stdin.readline()

class SlowTexts(TextFiles):
    reads = 0
    def read(self, shard):
        SlowTexts.reads += 1
        if SlowTexts.reads == 9 and stage == "read 2":
            stop_here()
        yield from super().read(shard)

class SlowPairs(BytePairTokenizer):
    def encode_all(self, texts):
        if stage == "encode":
            stop_here()
        return super().encode_all(texts)
    def save(self, folder):
        super().save(folder)
        if stage == "save":
            stop_here()

config = TokenInput.Config(
    corpus=SlowTexts.Config(files=files), tokenizer=SlowPairs.Config(vocab_size=270),
    sequence_length=16, batch_size=4)
print(prepare(config, progress=False).folder, flush=True)
"""


@pytest.fixture
def slow_process(texts):
    """Starts a preparation in another process that stops at a given stage until it gets a line."""
    started = []

    def start(stage):
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, stage, str(texts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "here\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stage", ["read 2", "save", "encode"])
def test_a_killed_preparation_leaves_no_store(small_input, slow_process, stage):
    small_input.set(tokenizer=BytePairTokenizer.Config(vocab_size=270))
    process = slow_process(stage)
    process.kill()
    process.wait()
    assert [name for name in stores(unfinished=False) if ".part-" not in name] == []

    whole = prepare(small_input, progress=False)
    assert stores() == [whole.folder.name]  # what the killed one left is gone
    TokenStore(whole.folder)


def test_leftovers_of_other_corpora_stay_so_that_they_can_continue(
    small_input, slow_process, texts, tmp_path
):
    process = slow_process("encode")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("other text")
    other = small_input.clone(corpus=TextFiles.Config(files=str(tmp_path / "other")))
    name = prepare(other, progress=False).folder.name
    assert len(stores()) == 2
    process.kill()
    process.wait()
    (tmp_path / "other" / "a.txt").write_text("other text again")
    again = prepare(other, progress=False).folder.name
    assert stores(unfinished=False) == sorted([name, again])
    assert len(stores()) == 3


def test_a_second_process_waits_for_the_first(small_input, slow_process, capsys):
    small_input.set(tokenizer=BytePairTokenizer.Config(vocab_size=270))
    process = slow_process("encode")
    results = []
    waiter = threading.Thread(target=lambda: results.append(prepare(small_input)))
    waiter.start()
    waiter.join(0.5)
    assert waiter.is_alive()
    output, _ = process.communicate("go on\n")
    waiter.join(20)
    assert [str(result.folder) for result in results] == [output.strip()]
    assert "waiting for another process" in capsys.readouterr().err
    assert stores() == [results[0].folder.name]


def test_text_that_is_long_to_prepare_shows_its_stages(small_input, monkeypatch, capsys):
    monkeypatch.setattr("dovetail.utils.progress._DELAY_SECONDS", 0.0)
    prepare(small_input)
    lines = capsys.readouterr().err.splitlines()
    stages = [line for line in lines if line.startswith("preparing texts: ")]
    assert stages == [f"preparing texts: {stage}" for stage in STAGES]


def test_short_work_says_nothing(small_input, capsys):
    prepare(small_input)
    assert capsys.readouterr().err == ""


STAGES = ("reading", "training the tokenizer", "tokenizing")


def test_preparing_needs_no_jax(texts, cache_folder):
    script = (
        "import sys; from dovetail.data import *; prepare(TokenInput.Config("
        "corpus=TextFiles.Config(files=sys.argv[1]), sequence_length=8, batch_size=2));"
        "assert 'jax' not in sys.modules, 'jax was imported'"
    ).replace("import *", "import TextFiles, TokenInput, prepare")
    subprocess.run([sys.executable, "-c", script, str(texts)], check=True)


def test_a_config_reads_back_from_text(small_input):
    from dovetail.config import from_text, to_text

    assert from_text(to_text(small_input)) == small_input
    assert isinstance(small_input.build(), TokenInput)
