"""Text as it comes: whole characters, and stops found across any split."""

import pytest

from dovetail.data.streaming import StreamingDecoder
from dovetail.data.tokenizer import ByteTokenizer
from dovetail.generate import TextDecoder, Tokenizer, WholeCharacters
from dovetail.generate.text import StopTexts
from tests.generate.scripted import Bytes

TEXTS = ["plain", "naïve café", "日本語", "a😀b😀", "", "e\u0301 \ufffd!"]
BROKEN = [b"\xff\xff\xff\xf0\x9f\x98\x80ok", b"\xe6\x97", b"\x80", b"a\xf0\x9fb", b"\xff" * 9]


def in_turn(decoder: TextDecoder, ids: list[int], size: int) -> list[str]:
    pushes = [decoder.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*pushes, decoder.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("data", [*(text.encode() for text in TEXTS), *BROKEN])
def test_pieces_join_to_the_whole_text(data: bytes, size: int) -> None:
    pieces = in_turn(WholeCharacters(Bytes()), list(data), size)
    assert "".join(pieces) == data.decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_splits_a_character(text: str) -> None:
    pieces = in_turn(WholeCharacters(Bytes()), list(text.encode()), 1)
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")
    assert pieces[-1] in ("", "\ufffd")


class Spaced:
    """Writes words with spaces between them, so that a text's first word has none before it."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join("x" * token for token in ids)


def test_a_token_may_be_written_differently_at_the_beginning() -> None:
    assert in_turn(WholeCharacters(Spaced()), [1, 2, 3], 1) == ["x", " xx", " xxx", ""]


def test_the_data_rooms_tokenizer_and_decoder_satisfy_the_interfaces() -> None:
    tokenizer = ByteTokenizer.Config().build()
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(StreamingDecoder(tokenizer), TextDecoder)
    assert in_turn(StreamingDecoder(tokenizer), list("né".encode()), 1) == ["n", "", "é", ""]


def through(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    texts = StopTexts(stops)
    given = "".join(texts.push(piece) for piece in pieces)
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
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert through(stops, pieces) == (before, True)


def test_what_only_began_like_a_stop_is_given_out_in_the_end() -> None:
    texts = StopTexts(["END"])
    assert texts.push("the E") == "the "
    assert texts.push("N") == ""
    assert texts.push("A") == "ENA"
    assert texts.push(" EN") == " "
    assert texts.finish() == "EN"
    assert not texts.found
