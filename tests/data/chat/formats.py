"""Published chat formats, with templates of our own: what is written where is theirs, no more.

The templates are in `templates/`, with generation blocks; without, these are removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from dovetail.data import PretrainedTokenizer
from dovetail.data.chat import ChatTemplate

NOW = datetime(2026, 1, 31)
QUESTION = {"role": "user", "content": "What is two and two?"}
ANSWER = {"role": "assistant", "content": "Four, as ever."}
AGAIN = {"role": "user", "content": "And  three — or 三 😀?"}
AGAIN_ANSWERED = {"role": "assistant", "content": "Six; drei und drei. 六 😀"}
SYSTEM = {"role": "system", "content": "Be brief."}
REASONED = {**ANSWER, "reasoning_content": "Two and two: count on."}
REASONED_AGAIN = {**AGAIN_ANSWERED, "reasoning_content": "Doubling three."}
ADD = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": "zwei"}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [ADD]}
RESULT = {"role": "tool", "name": "add", "content": "4"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds numbers.", "parameters": PARAMETERS},
}

PLAIN = {"messages": [QUESTION, ANSWER]}
MULTI_TURN = {"messages": [QUESTION, ANSWER, AGAIN, AGAIN_ANSWERED]}
WITH_SYSTEM = {"messages": [SYSTEM, *MULTI_TURN["messages"]]}
WITH_TOOLS = {"messages": [QUESTION, CALL, RESULT, ANSWER, AGAIN, AGAIN_ANSWERED], "tools": [TOOL]}
WITH_REASONING = {"messages": [QUESTION, REASONED, AGAIN, REASONED_AGAIN]}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "multi-turn": MULTI_TURN,
    "system": WITH_SYSTEM,
    "tools": WITH_TOOLS,
    "reasoning": WITH_REASONING,
}


TEMPLATES = Path(__file__).parent / "templates"
BLOCKS = re.compile(r"{% (end)?generation %}")


def template_text(name: str, blocks: bool) -> str:
    """Returns the template of a format, with generation blocks or without."""
    text = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return text if blocks else BLOCKS.sub("", text)


def chat_template(name: str, blocks: bool = False) -> ChatTemplate:
    """Returns the template of a format with its tokens, at a fixed time."""
    return ChatTemplate(template_text(name, blocks), FORMATS[name].special_tokens, now=NOW)


@dataclass(frozen=True)
class Format:
    """A chat format: its tokens, and the answers that one conversation has."""

    special_tokens: Mapping[str, str]
    tokens: tuple[str, ...]
    """The special tokens of its tokenizer."""
    answers: tuple[str, ...]
    """Of the two-turn conversation, with the tokens that end them."""
    sentence_piece: bool = False
    conversations: tuple[str, ...] = ("plain", "multi-turn", "system")
    rewrites: tuple[str, ...] = ()
    """The conversations whose history the template rewrites."""

    def tokenizer(self, folder: Path) -> PretrainedTokenizer:
        """Returns a small tokenizer that has the format's tokens, in files."""
        write = write_sentence_piece if self.sentence_piece else write_byte_level
        write(folder, self.tokens)
        return load(folder)


def load(folder: Path) -> PretrainedTokenizer:
    """Returns the tokenizer of a folder."""
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = PretrainedTokenizer.Config(vocab_size=size, end_of_text=0, folder=str(folder))
    return config.build()


def write_byte_level(folder: Path, tokens: tuple[str, ...]) -> None:
    """Writes a byte-level tokenizer with a few merges, as those of Qwen and Llama 3 are."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    texts = ["What is two and two? Four, as ever.\n\n user assistant system model add think"] * 3
    model.train_from_iterator(texts, trainer)
    model.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    model.save(str(folder / "tokenizer.json"))


def write_sentence_piece(folder: Path, tokens: tuple[str, ...]) -> None:
    """Writes a tokenizer as those of Llama 2 are: a space before the text, bytes for the rest."""
    letters = ["▁", *map(chr, range(33, 127)), "▁a", "▁t", "wo", "▁two"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [("▁", "a"), ("▁", "t"), ("w", "o"), ("▁t", "wo")]
    model = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    model.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    model.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    model.save(str(folder / "tokenizer.json"))


_FIRST, _SECOND = ANSWER["content"], AGAIN_ANSWERED["content"]
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_INST = {"bos_token": "<s>", "eos_token": "</s>"}
_MISTRAL_TOKENS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]")
_MISTRAL_TOKENS += ("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_ALL = ("plain", "multi-turn", "system")

FORMATS = {
    "chatml": Format(
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _IM,
        (f"{_FIRST}<|im_end|>", f"{_SECOND}<|im_end|>"),
        conversations=(*_ALL, "tools"),
    ),
    "chatml-reasoning": Format(
        {"eos_token": "<|im_end|>"},
        _IM,
        tuple(f"<think>\n\n</think>\n\n{each}<|im_end|>" for each in (_FIRST, _SECOND)),
        conversations=(*_ALL, "reasoning"),
        rewrites=("multi-turn", "system", "reasoning"),
    ),
    "llama-3": Format(
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        (f"{_FIRST}<|eot_id|>", f"{_SECOND}<|eot_id|>"),
        conversations=(*_ALL, "tools"),
    ),
    "llama-2": Format(_INST, ("<s>", "</s>"), (f" {_FIRST} </s>", f" {_SECOND} </s>"), True),
    "mistral": Format(
        _INST,
        ("<s>", "</s>", *_MISTRAL_TOKENS),
        (f" {_FIRST}</s>", f" {_SECOND}</s>"),
        True,
        conversations=(*_ALL, "tools"),
        rewrites=("tools",),
    ),
    "gemma": Format(
        {"bos_token": "<bos>", "eos_token": "<eos>"},
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        (f"{_FIRST}<end_of_turn>", f"{_SECOND}<end_of_turn>"),
        True,
    ),
    "phi": Format(
        {"eos_token": "<|endoftext|>"},
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        (f"{_FIRST}<|end|>", f"{_SECOND}<|end|>"),
    ),
    "deepseek-r1": Format(
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        (),
        conversations=("reasoning",),
        rewrites=("reasoning",),
    ),
    "zephyr": Format(_INST, ("<s>", "</s>"), (f"{_FIRST}</s>", f"{_SECOND}</s>"), True),
    "harmony": Format(
        {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
        ("<|startoftext|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
        tuple(f"<|channel|>final<|message|>{each}<|return|>" for each in (_FIRST, _SECOND)),
        conversations=(*_ALL, "reasoning"),
        rewrites=("multi-turn", "system", "reasoning"),
    ),
}
CASES = [
    (name, conversation, blocks)
    for name, form in FORMATS.items()
    for conversation in form.conversations
    for blocks in (False, True)
]
