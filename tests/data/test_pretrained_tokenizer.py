"""A ready-made tokenizer: the same ids and texts as the library's, and bytes that add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dovetail.config import ConfigError, from_text, identity, to_text
from dovetail.data import PretrainedTokenizer
from dovetail.data.pretrained_tokenizer import read_vocab_size, token_id
from dovetail.data.tokenizer import digest_of
from tests.interop.files import write_tokenizer

BYTES = 256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, BYTES + 2)
    return tmp_path


def built(folder: Path, size: int = BYTES + 2) -> PretrainedTokenizer:
    return PretrainedTokenizer.Config(
        vocab_size=size,
        end_of_text=size - 1,
        digest=digest_of(folder / "tokenizer.json"),
        folder=str(folder),
    ).build()


def test_a_text_begins_as_the_files_say_and_comes_back(folder: Path) -> None:
    tokenizer = built(folder)
    text = "héllo wörld\n"
    ids = tokenizer.encode(text)
    assert ids[0] == token_id(folder, "<s>")
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())
    assert [list(each) for each in tokenizer.encode_all([text, ""])] == [list(ids), [ids[0]]]


def test_sizes_and_special_tokens(folder: Path) -> None:
    tokenizer = built(folder)
    assert read_vocab_size(folder) == tokenizer.vocab_size == BYTES + 2
    assert token_id(folder, "</s>") == tokenizer.end_of_text == BYTES + 1
    assert tokenizer.token_bytes[tokenizer.end_of_text] == 0
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size


def test_an_end_that_the_files_add_is_left_out(tmp_path: Path) -> None:
    from tokenizers import processors

    write_tokenizer(tmp_path, BYTES + 2)
    model = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    end = model.token_to_id("</s>")
    model.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", end)])
    model.save(str(tmp_path / "tokenizer.json"))
    assert end not in built(tmp_path).encode("abc")


def test_sentence_pieces_have_spaces_and_bytes(tmp_path: Path) -> None:
    """As Llama 2 and Gemma write them: ▁ for a space, <0x0A> for a byte."""
    vocabulary = {"<unk>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "▁a": 4}
    model = Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    model.normalizer = normalizers.Replace(" ", "▁")
    model.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    model.add_special_tokens([AddedToken("<unk>")])
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = built(tmp_path, 5)
    ids = tokenizer.encode("a a\n")
    assert list(ids) == [3, 4, 1]
    assert tokenizer.decode_bytes([3, 4, 1]) == b"a a\n"
    assert tokenizer.decode([3, 4, 1]) == "a a\n"


def test_added_tokens_that_are_text_count_as_text(tmp_path: Path) -> None:
    model = Tokenizer(models.BPE({letter: n for n, letter in enumerate("ab")}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_tokens([AddedToken("  ", special=False)])
    model.save(str(tmp_path / "tokenizer.json"))
    assert list(built(tmp_path, 3).token_bytes) == [1, 1, 2]


def test_files_are_copied_with_their_companions(folder: Path, tmp_path: Path) -> None:
    tokenizer = built(folder)
    tokenizer.fit([])
    tokenizer.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "tokenizer_config.json").is_file()
    other = PretrainedTokenizer.Config(vocab_size=BYTES + 2, end_of_text=BYTES + 1).build()
    other.load(tmp_path / "copy")
    assert list(other.encode("abc")) == list(tokenizer.encode("abc"))


def test_where_the_files_are_is_not_who_they_are(folder: Path) -> None:
    tokenizer = built(folder)
    moved = tokenizer.config.clone(folder="elsewhere")
    assert identity(moved) == identity(tokenizer.config)
    assert moved.build().fingerprint() == tokenizer.fingerprint()
    assert from_text(to_text(moved)) == moved


def test_other_files_are_noticed(folder: Path) -> None:
    tokenizer = built(folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text + " ")
    with pytest.raises(ConfigError, match="is not the tokenizer of this config"):
        tokenizer.load(folder)


def test_files_that_are_missing_or_broken(tmp_path: Path) -> None:
    config = PretrainedTokenizer.Config(vocab_size=5, end_of_text=4)
    with pytest.raises(ConfigError, match=r"expected the folder of tokenizer.json, got none"):
        config.build().encode("a")
    with pytest.raises(ConfigError, match=r"A tokenizer needs a tokenizer\.json"):
        config.build().load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 5}))
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        config.build().load(tmp_path)
    write_tokenizer(tmp_path, BYTES)
    with pytest.raises(ConfigError, match="but vocab_size is 5"):
        config.build().load(tmp_path)
