"""Model folders for tests, made with numpy and a safetensors writer of somebody else's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from dovetail.interop import model_tensors
from dovetail.models import ModelFamily

Arrays = dict[str, np.ndarray]


def random_tensors(
    family: ModelFamily, hf_config: Mapping[str, Any], dtype: Any = np.float32
) -> Arrays:
    """Random numbers for every tensor that a model's files hold."""
    random = np.random.default_rng(0)
    tensors = model_tensors(family, family.from_hf(hf_config).build())
    return {
        name: (random.normal(size=tensor.shape) * 0.1 + ("norm" in name)).astype(dtype)
        for name, tensor in tensors.items()
    }


def write_model(
    folder: Path, hf_config: Mapping[str, Any], arrays: Arrays, shards: int = 1
) -> Path:
    """Writes config.json and the weights, in one file or several with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(hf_config))
    if shards == 1:
        save_file(arrays, folder / "model.safetensors")
        return folder
    index = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(arrays.items())[number::shards])
        save_file(part, folder / name)
        index |= dict.fromkeys(part, name)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes a byte-level tokenizer whose letters are few, with a begin and an end of text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab_size - 2]
    model = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    begin = model.token_to_id("<s>")
    model.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", begin)])
    model.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


BFLOAT16 = ml_dtypes.bfloat16
