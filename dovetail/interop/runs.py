"""What an imported model needs to be a run: a trainer's config around it, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.data import TokenInput, TokenizerFiles
from dovetail.data.tokenizer_files import (
    COMPANIONS,
    MAIN_FILE,
    digest_of,
    read_vocab_size,
    token_id,
)
from dovetail.interop.folders import LocalFolder, ModelFolder, read_json
from dovetail.models import CausalLM
from dovetail.runtime import RunFolder
from dovetail.trainer import Trainer

# A run must say how it would train. These are modest, and nobody is held to them: fine-tuning
# takes the model and the tokenizer, and says the rest itself.
_LONGEST_SEQUENCE = 1024
_BATCH_SIZE = 8
_STEPS = 1000

_LONGEST_CHAIN = 20  # of runs that began from each other; a circle is longer
_LARGEST_FILE = 2**30  # no tokenizer is a gigabyte


# As the `tokenizers` library writes them.
_BYTE_DECODER = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_END_TOKEN = {
    "content": "<|endoftext|>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


def imported_run(
    model: CausalLM.Config,
    said: Mapping[str, Any],
    generation: Mapping[str, Any],
    run: Path | None,
) -> Trainer.Config:
    """Returns the config of a run that has this model and the tokenizer in its folder.

    Args:
        model: the model.
        said: what config.json said.
        generation: what generation_config.json said.
        run: the run folder; None if there is no tokenizer in it.
    """
    ends = end_tokens(said, generation)
    if run is not None and not ends:
        ends = _named_end(run / "tokenizer")
    size = read_vocab_size(run / "tokenizer") if run is not None else model.vocab_size
    tokenizer = TokenizerFiles.Config(
        vocab_size=size,
        end_of_text=ends[0] if ends else size - 1,
        digest=digest_of(run / "tokenizer" / MAIN_FILE) if run is not None else "",
    )
    longest = said.get("max_position_embeddings")
    length = min(longest, _LONGEST_SEQUENCE) if isinstance(longest, int) else _LONGEST_SEQUENCE
    return Trainer.Config(
        model=model,
        input=TokenInput.Config(
            tokenizer=tokenizer, sequence_length=max(1, length), batch_size=_BATCH_SIZE
        ),
        steps=_STEPS,
    )


def stop_tokens(folder: RunFolder, end_of_text: int) -> list[int]:
    """Returns the ids at which generation ends: the end of text, and what an import says too."""
    source = source_folder(folder)
    if source is None:
        return [end_of_text]
    files = LocalFolder(source)
    said = [read_json(files, name) for name in files.names()]
    return list(dict.fromkeys([end_of_text, *end_tokens(*said)]))


def source_folder(folder: RunFolder) -> Path | None:
    """Returns where the words of an import are kept: in the run, or in the one it began from."""
    for _ in range(_LONGEST_CHAIN):
        if (folder.path / "source").is_dir():
            return folder.path / "source"
        before = getattr(getattr(folder.config(), "start", None), "run", None)
        if not isinstance(before, str) or not (Path(before) / "config.txt").is_file():
            return None
        folder = RunFolder(Path(before))
    return None


def end_tokens(*settings: Mapping[str, Any]) -> list[int]:
    """Returns the ids that end a text, as config.json or generation_config.json say."""
    ends: list[int] = []
    for said in settings:
        value = said.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ends += [number for number in values if type(number) is int and number not in ends]
    return ends


def write_tokenizer(folder: ModelFolder, target: Path) -> bool:
    """Copies the files of a tokenizer; says whether there is one that can be used here."""
    names = folder.names()
    for name in (MAIN_FILE, *COMPANIONS):
        if name in names:
            size = folder.size(name)
            if size > _LARGEST_FILE:
                raise ConfigError(f"{folder.name}/{name} has {size} bytes; that is no tokenizer.")
            target.mkdir(exist_ok=True)
            (target / name).write_bytes(folder.read(name, 0, size))
    return MAIN_FILE in names


def complete_tokenizer(folder: Path, end_of_text: int) -> None:
    """Adds what other programs need to a tokenizer that was learned here: its end, and a decoder.

    Ours know these without files. A tokenizer that has its own is left as it is.
    """
    config = folder / "tokenizer_config.json"
    if config.is_file():
        return
    file = folder / MAIN_FILE
    said = json.loads(file.read_text(encoding="utf-8"))
    said["decoder"] = said.get("decoder") or _BYTE_DECODER
    if not any(token.get("id") == end_of_text for token in said.get("added_tokens", [])):
        said.setdefault("added_tokens", []).append({**_END_TOKEN, "id": end_of_text})
    file.write_text(json.dumps(said), encoding="utf-8")
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END_TOKEN["content"]}
    config.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")


def _named_end(folder: Path) -> list[int]:
    """Looks up the token that tokenizer_config.json names as the end of a text."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return []
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    text = named.get("content") if isinstance(named, dict) else named
    found = token_id(folder, text) if isinstance(text, str) else None
    return [found] if found is not None else []
