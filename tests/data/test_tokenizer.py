import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import BytePairTokenizer, ByteTokenizer
from dovetail.data.tokenizer import byte_characters
from dovetail.generate import IncrementalDetokenizer

TEXTS = ["def function(self):\n    return self.value\n" * 8, "naïve 日本語 text, and more text"]


def byte_pairs(vocab_size=300):
    tokenizer = BytePairTokenizer.Config(vocab_size=vocab_size).build()
    tokenizer.fit(TEXTS)
    return tokenizer


TOKENIZERS = {"bytes": ByteTokenizer.Config().build(), "byte pairs": byte_pairs()}

any_text = st.text(st.characters(exclude_categories=["Cs"]))
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


@each
@given(text=any_text)
def test_round_trip_is_exact(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_of_text not in ids


@each
@given(text=any_text)
def test_token_bytes_add_up_to_the_text(tokenizer, text):
    assert tokenizer.token_bytes[tokenizer.encode(text)].sum() == len(text.encode())


@each
@given(text=any_text, data=st.data())
def test_streaming_yields_complete_characters_and_the_same_text(tokenizer, text, data):
    ids = tokenizer.encode(text).tolist()
    cut = data.draw(st.integers(0, len(ids)))
    decoder = IncrementalDetokenizer(tokenizer)
    pieces = [decoder.push([index]) for index in ids[:cut]]
    assert text.startswith("".join(pieces))
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids[:cut])


@each
@given(ids=st.lists(st.integers(0, 256), max_size=30))
def test_streaming_agrees_with_decode_on_any_ids(tokenizer, ids):
    decoder = IncrementalDetokenizer(tokenizer)
    streamed = "".join(decoder.push([index]) for index in ids) + decoder.finish()
    assert streamed == tokenizer.decode(ids)


@each
def test_all_at_once_is_one_by_one(tokenizer):
    for together, alone in zip(
        tokenizer.encode_all(TEXTS), map(tokenizer.encode, TEXTS), strict=True
    ):
        assert together.dtype == np.int32
        np.testing.assert_array_equal(together, alone)


@each
def test_end_of_text_is_the_last_id_and_stands_for_no_bytes(tokenizer):
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    assert tokenizer.token_bytes.shape == (tokenizer.vocab_size,)
    assert tokenizer.token_bytes[tokenizer.end_of_text] == 0
    assert tokenizer.decode([tokenizer.end_of_text]) == ""


@each
def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = tokenizer.config.build()
    again.load(tmp_path)
    text = TEXTS[0] + "unseen ☃"
    np.testing.assert_array_equal(again.encode(text), tokenizer.encode(text))
    np.testing.assert_array_equal(again.token_bytes, tokenizer.token_bytes)


def test_a_stream_holds_back_half_a_character():
    tokenizer = TOKENIZERS["bytes"]
    decoder = IncrementalDetokenizer(tokenizer)
    assert [decoder.push([index]) for index in tokenizer.encode("aé😀").tolist()] == [
        *("a", "", "é"),
        *("", "", "", "😀"),
    ]
    assert decoder.push([0xF0]) == ""
    assert decoder.finish() == "\N{REPLACEMENT CHARACTER}"
    assert decoder.push([ord("b")]) == "b"


def test_byte_pairs_shorten_what_they_have_seen():
    tokenizer = TOKENIZERS["byte pairs"]
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0]) / 3


def test_special_words_in_a_text_are_plain_text():
    assert len(byte_pairs().encode("<|endoftext|>")) > 1


def test_vocabulary_size_is_as_configured_though_few_merges_were_found():
    tokenizer = byte_pairs(5000)
    assert tokenizer.vocab_size == 5000
    assert tokenizer.end_of_text == 4999
    used = np.count_nonzero(tokenizer.token_bytes)
    assert 256 < used < 400
    assert tokenizer.decode([4000, 65, 4999]) == tokenizer.decode([65])


def test_sizes_are_known_before_learning():
    tokenizer = BytePairTokenizer.Config(vocab_size=1000).build()
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (1000, 999)
    with pytest.raises(RuntimeError, match=r"is not trained yet: call fit"):
        tokenizer.encode("a")


def test_every_byte_needs_an_id():
    with pytest.raises(ConfigError, match=r"vocab_size: expected at least 257 .*got 256"):
        BytePairTokenizer.Config(vocab_size=256).build()


def test_letters_for_bytes_are_those_of_the_library():
    from tokenizers import pre_tokenizers

    characters = byte_characters()
    assert sorted(characters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    [(token, _)] = pieces.pre_tokenize_str("a \né")
    assert token == "".join(characters[value] for value in "a \né".encode())


def test_learning_is_the_same_in_another_process(tmp_path):
    script = (
        "from dovetail.data import BytePairTokenizer; import sys, pathlib;"
        "t = BytePairTokenizer.Config(vocab_size=400).build();"
        "t.fit(open(p).read() for p in sys.argv[2:]); t.save(pathlib.Path(sys.argv[1]))"
    )
    sources = [__file__, subprocess.__file__]
    saved = []
    for threads in ("1", "2"):
        folder = tmp_path / threads
        folder.mkdir()
        command = [sys.executable, "-c", script, str(folder), *sources]
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        subprocess.run(command, check=True, env=environment)
        saved.append((folder / "tokenizer.json").read_bytes())
    assert saved[0] == saved[1]
