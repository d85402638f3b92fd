"""Small corpora that prepare in milliseconds."""

from pathlib import Path

import hypothesis
import pytest

from dovetail.data import ByteTokenizer, TextFiles, TokenInput

# On a busy machine, or where the first example imports JAX, a deadline would fail by chance.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

TEXTS = {
    "one.txt": "the first document\n" * 9,
    "two.txt": "a second, shorter one: héé 日本語\n",
    "deeper/three.txt": "x",
    "deeper/four.txt": "for each in range(4):\n    print(each)\n" * 5,
    "five.txt": "five 😀 five\n" * 20,
    "six.txt": "<|endoftext|> is only text here\n",
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a few text files."""
    folder = tmp_path / "texts"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def small_input(texts: Path, cache_folder: Path) -> TokenInput.Config:
    """The config of an input over the small corpus, with a cache folder of its own."""
    return TokenInput.Config(
        corpus=TextFiles.Config(files=str(texts)),
        tokenizer=ByteTokenizer.Config(),
        sequence_length=16,
        batch_size=4,
    )
