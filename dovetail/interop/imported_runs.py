"""The run around an imported model: the trainer config, the tokenizer and the stop tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.data import PretrainedTokenizer, TokenInput, end_of_text_id
from dovetail.data.pretrained_tokenizer import COMPANIONS, read_vocab_size
from dovetail.data.tokenizer import MAIN_FILE, digest_of
from dovetail.interop.model_folders import LocalFolder, ModelFolder, read_json
from dovetail.models import ModelFamily
from dovetail.trainer import Trainer

# A run config needs training settings. Fine-tuning only takes the model and the tokenizer from it.
_MAX_SEQUENCE_LENGTH = 1024
_BATCH_SIZE = 8
_STEPS = 1000

_MAX_TOKENIZER_BYTES = 2**30


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
    family: ModelFamily,
    model: Any,
    hf_config: Mapping[str, Any],
    generation: Mapping[str, Any],
    run: Path | None,
) -> Trainer.Config:
    """Returns the trainer config of a run with this model and the tokenizer in its folder.

    A family that is not of text has no tokenizer here, but an input of its own.

    Args:
        family: the family of the model.
        model: the model.
        hf_config: the config.json.
        generation: the generation_config.json.
        run: the run folder; None if it has no tokenizer.
    """
    if family.input is not None:
        source: Any = family.input(model)
        return Trainer.Config(model=model, input=source.set(batch_size=_BATCH_SIZE), steps=_STEPS)
    ends = end_tokens(hf_config, generation)
    if run is not None and not ends:
        found = end_of_text_id(run / "tokenizer")
        ends = [] if found is None else [found]
    size = read_vocab_size(run / "tokenizer") if run is not None else model.vocab_size
    tokenizer = PretrainedTokenizer.Config(
        vocab_size=size,
        end_of_text=ends[0] if ends else size - 1,
        digest=digest_of(run / "tokenizer" / MAIN_FILE) if run is not None else "",
    )
    longest = hf_config.get("max_position_embeddings")
    length = (
        min(longest, _MAX_SEQUENCE_LENGTH) if isinstance(longest, int) else _MAX_SEQUENCE_LENGTH
    )
    return Trainer.Config(
        model=model,
        input=TokenInput.Config(
            tokenizer=tokenizer, sequence_length=max(1, length), batch_size=_BATCH_SIZE
        ),
        steps=_STEPS,
    )


def end_tokens_of(source: Path | None) -> list[int]:
    """Returns the end-of-text ids of an imported model, from the folder of its config.json."""
    if source is None:
        return []
    files = LocalFolder(source)
    return end_tokens(*(read_json(files, name) for name in files.names()))


def end_tokens(*settings: Mapping[str, Any]) -> list[int]:
    """Returns the end-of-text ids in config.json or generation_config.json."""
    ends: list[int] = []
    for values in settings:
        value = values.get("eos_token_id")
        numbers = value if isinstance(value, list) else [value]
        ends += [number for number in numbers if type(number) is int and number not in ends]
    return ends


def write_tokenizer(folder: ModelFolder, target: Path) -> bool:
    """Copies the tokenizer files; returns whether there is a tokenizer.json."""
    names = folder.names()
    for name in (MAIN_FILE, *COMPANIONS):
        if name in names:
            size = folder.size(name)
            if size > _MAX_TOKENIZER_BYTES:
                raise ConfigError(
                    f"{folder.name}/{name} has {size} bytes, too many for a tokenizer."
                )
            target.mkdir(exist_ok=True)
            (target / name).write_bytes(folder.read(name, 0, size))
    return MAIN_FILE in names


def complete_tokenizer(folder: Path, end_of_text: int) -> None:
    """Adds the end-of-text token and a decoder to a tokenizer that Dovetail trained.

    Dovetail needs neither in the file, other programs do. Other tokenizers are left as they are.
    """
    config = folder / "tokenizer_config.json"
    if config.is_file():
        return
    file = folder / MAIN_FILE
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["decoder"] = tokenizer.get("decoder") or _BYTE_DECODER
    if not any(token.get("id") == end_of_text for token in tokenizer.get("added_tokens", [])):
        tokenizer.setdefault("added_tokens", []).append({**_END_TOKEN, "id": end_of_text})
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END_TOKEN["content"]}
    config.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
