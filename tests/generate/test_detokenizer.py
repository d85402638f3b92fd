"""Incremental detokenization: complete characters, stop strings found across any split."""

import pytest

from dovetail.data.tokenizer import ByteTokenizer
from dovetail.generate import Detokenizer, IncrementalDetokenizer, TokenizerLike
from dovetail.generate.detokenizer import StopStrings
from tests.generate.scripted import Bytes

TEXTS = ["plain", "naïve café", "日本語", "a😀b😀", "", "e\u0301 \ufffd!"]
BROKEN = [b"\xff\xff\xff\xf0\x9f\x98\x80ok", b"\xe6\x97", b"\x80", b"a\xf0\x9fb", b"\xff" * 9]


def stream(decoder: Detokenizer, ids: list[int], size: int) -> list[str]:
    pushes = [decoder.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*pushes, decoder.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("data", [*(text.encode() for text in TEXTS), *BROKEN])
def test_chunks_join_to_the_full_text(data: bytes, size: int) -> None:
    chunks = stream(IncrementalDetokenizer(Bytes()), list(data), size)
    assert "".join(chunks) == data.decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_no_chunk_splits_a_character(text: str) -> None:
    chunks = stream(IncrementalDetokenizer(Bytes()), list(text.encode()), 1)
    assert sum(chunk.count("\ufffd") for chunk in chunks) == text.count("\ufffd")
    assert chunks[-1] in ("", "\ufffd")


class Spaced:
    """Writes words with spaces between them, so that a text's first word has none before it."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join("x" * token for token in ids)


def test_a_token_may_be_written_differently_at_the_beginning() -> None:
    assert stream(IncrementalDetokenizer(Spaced()), [1, 2, 3], 1) == ["x", " xx", " xxx", ""]


def test_a_tokenizer_of_data_satisfies_the_interface() -> None:
    tokenizer = ByteTokenizer.Config().build()
    assert isinstance(tokenizer, TokenizerLike)
    decoder = IncrementalDetokenizer(tokenizer)
    assert isinstance(decoder, Detokenizer)
    assert stream(decoder, list("né".encode()), 1) == ["n", "", "é", ""]


def through(stops: list[str], chunks: list[str]) -> tuple[str, bool]:
    texts = StopStrings(stops)
    given = "".join(texts.push(chunk) for chunk in chunks)
    return given + texts.finish(), texts.found


@pytest.mark.parametrize("size", [1, 2, 5, 50])
@pytest.mark.parametrize(
    ("stops", "text", "before"),
    [
        (["END"], "some text END more END", "some text "),
        (["END", "text"], "some text END", "some "),
        (["ab", "abc"], "xabc", "x"),
        (["aab"], "aaaab", "aa"),  # a beginning that overlaps itself
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo"),
        (["END"], "ENDED", ""),
    ],
)
def test_a_stop_is_found_however_the_text_is_split(
    stops: list[str], text: str, before: str, size: int
) -> None:
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert through(stops, chunks) == (before, True)


def test_a_partial_stop_string_is_flushed_at_the_end() -> None:
    texts = StopStrings(["END"])
    assert texts.push("the E") == "the "
    assert texts.push("N") == ""
    assert texts.push("A") == "ENA"
    assert texts.push(" EN") == " "
    assert texts.finish() == "EN"
    assert not texts.found
