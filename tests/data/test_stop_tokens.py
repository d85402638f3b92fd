"""Which ids end generation: the end of text, and the end of a turn that the files name."""

from pathlib import Path

from dovetail.data import ByteTokenizer, stop_tokens_of
from dovetail.data.chat.examples import make_chat_tokenizer


def test_the_end_of_a_turn_ends_generation(tmp_path: Path) -> None:
    tokenizer = make_chat_tokenizer(tmp_path)
    end_of_turn = tokenizer.special_tokens["<|im_end|>"]
    assert stop_tokens_of(tokenizer) == [tokenizer.end_of_text, end_of_turn]
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|endoftext|>"}}')
    assert stop_tokens_of(tokenizer) == [tokenizer.end_of_text]
    (tmp_path / "tokenizer_config.json").unlink()
    assert stop_tokens_of(tokenizer) == [tokenizer.end_of_text]
    assert stop_tokens_of(ByteTokenizer.Config().build()) == [256]
