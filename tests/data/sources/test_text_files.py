import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import TextFiles
from dovetail.data.sources import fingerprint as fingerprint_module
from dovetail.data.sources.formats.plain_text import cut_passages
from tests.data.conftest import TEXTS


def documents(**values):
    return {each.name: each.text for each in TextFiles.Config(**values).build().documents()}


def test_text_files_of_a_folder(texts):
    (texts / "picture.png").write_bytes(b"\x89PNG")
    assert documents(files=str(texts)) == TEXTS


def test_text_files_by_pattern_and_single(texts):
    assert set(documents(files=f"{texts}/deeper/*.txt")) == {"three.txt", "four.txt"}
    assert set(documents(files=f"{texts}/**/*o?[re].txt")) == {"deeper/four.txt", "one.txt"}
    assert set(documents(files=f"{texts}/[!a-s]*.txt")) == {"two.txt"}
    assert documents(files=str(texts / "two.txt")) == {"two.txt": TEXTS["two.txt"]}


def test_a_flat_pattern_does_not_wander_into_folders(texts, monkeypatch):
    entered = []
    walk = os.walk

    def watched(*arguments, **options):
        for entry in walk(*arguments, **options):
            entered.append(Path(entry[0]).name)
            yield entry

    monkeypatch.setattr(os, "walk", watched)
    assert set(documents(files=f"{texts}/t*.txt")) == {"two.txt"}
    assert set(entered) == {"texts"}
    assert set(documents(files=f"{texts}/*/t*.txt")) == {"deeper/three.txt"}


def test_home_and_relative_paths(texts, monkeypatch):
    monkeypatch.setenv("HOME", str(texts))
    assert set(documents(files="~/deeper")) == {"three.txt", "four.txt"}
    monkeypatch.chdir(texts)
    assert set(documents(files="deeper")) == {"three.txt", "four.txt"}


def test_line_ends_are_kept(texts):
    (texts / "one.txt").write_bytes(b"a\r\nb\rc\n")
    assert documents(files=str(texts / "one.txt")) == {"one.txt": "a\r\nb\rc\n"}


def test_a_long_file_becomes_passages(texts):
    (texts / "long.txt").write_text("0123456789\n" * 100)
    found = documents(files=str(texts / "long.txt"), passage_bytes=256)
    assert list(found) == [f"long.txt#{number}" for number in range(5)]
    assert "".join(found.values()) == "0123456789\n" * 100
    assert all(text.endswith("\n") and len(text) <= 256 for text in found.values())


@given(st.text(), st.integers(4, 40))
def test_passages_join_up_and_keep_characters_whole(text, limit):
    pieces = list(cut_passages(io.BytesIO(text.encode()), limit))
    assert "".join(piece.decode() for piece in pieces) == text
    assert all(len(piece) <= limit for piece in pieces)


@given(st.binary(max_size=200), st.integers(4, 40))
def test_passages_of_bytes_that_are_no_text_join_up(data, limit):
    pieces = list(cut_passages(io.BytesIO(data), limit))
    assert b"".join(pieces) == data
    assert all(len(piece) <= limit for piece in pieces)


def test_fingerprint_follows_names_and_contents(texts):
    def fingerprint(**values):
        return TextFiles.Config(files=str(texts), **values).build().fingerprint()

    first = fingerprint()
    os.utime(texts / "one.txt", (1, 1))
    assert fingerprint() == first
    assert fingerprint(passage_bytes=100) != first
    (texts / "one.txt").rename(texts / "uno.txt")
    renamed = fingerprint()
    assert renamed != first
    (texts / "uno.txt").write_text(TEXTS["one.txt"].replace("f", "g"))
    assert fingerprint() != renamed


def test_the_hash_of_a_large_corpus_is_remembered(texts, cache_folder, monkeypatch):
    config = TextFiles.Config(files=str(texts))
    plain = config.build().fingerprint()
    monkeypatch.setattr(fingerprint_module, "_ALWAYS_HASHED_BYTES", 0)
    assert config.build().fingerprint() == plain
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint_module, "_hash_contents", lambda files: pytest.fail("read again"))
        assert config.build().fingerprint() == plain
    (texts / "one.txt").write_text("changed")
    assert config.build().fingerprint() != plain


def test_missing_path_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"^files: there is no file or folder 'nowhere' .*{re.escape(str(tmp_path))}"
    with pytest.raises(ConfigError, match=message):
        documents(files="nowhere")
    with pytest.raises(ConfigError, match=r"no file or folder 'nowhere/\*\.txt'"):
        documents(files="nowhere/*.txt")


def test_a_folder_without_matches_says_what_it_holds(texts):
    with pytest.raises(ConfigError, match=r"matches '\*\*/\*\.md'.*end in \.txt.*Set include"):
        documents(files=str(texts), include="**/*.md")


def test_a_file_that_is_not_text_is_named(texts):
    (texts / "bad.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(
        ConfigError, match=r"(?s)bad\.txt: not UTF-8 text \(byte 3 is 0xff\).*exclude"
    ):
        documents(files=str(texts))


def test_a_file_that_vanishes_or_cannot_be_read_is_named(texts):
    (texts / "gone.txt").symlink_to(texts / "nothing here")
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.txt: No such file.*leave it out"):
        documents(files=str(texts))
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.txt"):
        TextFiles.Config(files=str(texts)).build().fingerprint()


def test_passages_must_hold_a_character():
    with pytest.raises(ConfigError, match=r"passage_bytes: expected at least 4.*got 3"):
        TextFiles.Config(files="x", passage_bytes=3).build()


def test_names_for_folders_are_safe():
    def name(path):
        return TextFiles.Config(files=path).build().name

    assert name("/data/my notes") == "my-notes"
    assert name("/data/notes/**/*.md") == "notes"
    assert name("/") == "text"
    assert name(str(Path("/data") / ("n" * 90))) == "n" * 40
