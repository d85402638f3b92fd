"""A small chat set in a file, with its tokenizer and template, as an input."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.data import BestFit, ChatFiles, PretrainedTokenizer, TokenInput
from dovetail.data.chat.examples import make_chat_tokenizer, write_conversations


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PretrainedTokenizer.Config:
    """The config of the tokenizer of the chat set; its folder has the template, too."""
    config = make_chat_tokenizer(tmp_path_factory.mktemp("chat") / "tokenizer").config
    assert isinstance(config, PretrainedTokenizer.Config)
    return config


@pytest.fixture
def chat_file(tmp_path: Path) -> Path:
    """Forty conversations."""
    path = tmp_path / "chat.jsonl"
    write_conversations(path, count=40)
    return path


@pytest.fixture
def chat_input(
    chat_file: Path, chat_tokenizer: PretrainedTokenizer.Config, cache_folder: Path
) -> TokenInput.Config:
    """The config of an input of these conversations."""
    return TokenInput.Config(
        corpus=ChatFiles.Config(files=str(chat_file)),
        tokenizer=chat_tokenizer.clone(),
        packing=BestFit.Config(),
        sequence_length=256,
        batch_size=4,
    )
