"""What the files of a Hugging Face tokenizer say, and what they must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError
from dovetail.data import pretrained_tokenizer
from tests.interop.files import write_tokenizer

SIZE = 258


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, SIZE)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink(missing_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokenizer_config.json", {"eos_token": "</s>"}),
        ("tokenizer_config.json", {"eos_token": {"content": "</s>", "special": True}}),
        ("special_tokens_map.json", {"eos_token": "</s>"}),
        ("generation_config.json", {"eos_token_id": [SIZE - 1, 3]}),
        ("config.json", {"eos_token_id": SIZE - 1}),
    ],
)
def test_each_file_may_name_the_end(folder: Path, name: str, values: Any) -> None:
    (folder / name).write_text(json.dumps(values))
    for path in (folder, folder / "tokenizer.json"):
        config = pretrained_tokenizer(path)
        assert (config.vocab_size, config.end_of_text) == (SIZE, SIZE - 1)
        assert config.build().decode(config.build().encode("abc")) == "abc"


def test_the_user_names_the_end(folder: Path) -> None:
    assert pretrained_tokenizer(folder, "<s>").end_of_text == SIZE - 2
    with pytest.raises(ConfigError, match=r"there is no token '</z>'.*'</s>'"):
        pretrained_tokenizer(folder, "</z>")


def test_no_end_is_an_error_that_says_what_to_pass(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no end of text.*end_of_text=TOKEN.*<s>, </s>"):
        pretrained_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": SIZE}))
    with pytest.raises(ConfigError, match="no end of text"):
        pretrained_tokenizer(folder)


def test_other_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"expected a folder with a tokenizer\.json"):
        pretrained_tokenizer(tmp_path / "tokenizer.model")
    with pytest.raises(ConfigError, match=r"A tokenizer needs a tokenizer\.json"):
        pretrained_tokenizer(tmp_path / "nowhere")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read"):
        pretrained_tokenizer(folder)
