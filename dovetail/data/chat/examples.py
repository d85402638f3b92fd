"""A small chat set that the package makes itself, with a template and a tokenizer for it.

The conversations are deterministic: arithmetic and a little dictionary, in several turns, some with
a system prompt and a call of a tool. A tiny model learns them in minutes, and an answer can be
checked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.data.chat.template import TEMPLATE_FILE
from dovetail.data.pretrained_tokenizer import CONFIG_FILE, PretrainedTokenizer
from dovetail.data.tokenizer import MAIN_FILE, digest_of

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>tools\\n' }}
{%- for tool in tools %}{{ tool | tojson ~ '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' ~ call.function | tojson ~ '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{%- else %}
{{- message.content ~ '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""ChatML with tools, and the answers in generation blocks."""

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiplies two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

_SYSTEM = "Answer with one short sentence."
_OPPOSITES = {
    "big": "small",
    "hot": "cold",
    "early": "late",
    "open": "closed",
    "light": "dark",
    "full": "empty",
    "soft": "hard",
    "near": "far",
}


def make_conversations(count: int = 300, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yields records in OpenAI's format; the same ones for the same arguments."""
    for number in range(count):
        yield _conversation(random.Random(f"{seed}/{number}"))


def write_conversations(path: Path, count: int = 300, seed: int = 0) -> None:
    """Writes the records as JSONL."""
    lines = [json.dumps(record, ensure_ascii=False) for record in make_conversations(count, seed)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_chat_tokenizer(folder: Path, vocab_size: int = 512) -> PretrainedTokenizer:
    """Trains a byte-level tokenizer on the set; writes it and the template to a folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    special = [END_OF_TEXT, TURN_START, TURN_END]
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    texts = [json.dumps(record["messages"]) for record in make_conversations()]
    model.train_from_iterator(texts, trainer)
    model.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    end_of_text = model.token_to_id(END_OF_TEXT)
    assert end_of_text is not None
    folder.mkdir(parents=True, exist_ok=True)
    model.save(str(folder / MAIN_FILE))
    config = {"eos_token": TURN_END, "pad_token": END_OF_TEXT}
    (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    (folder / TEMPLATE_FILE).write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer = PretrainedTokenizer.Config(
        vocab_size=vocab_size,
        end_of_text=end_of_text,
        digest=digest_of(folder / MAIN_FILE),
        folder=str(folder),
    )
    return tokenizer.build()


def _conversation(draw: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": _SYSTEM})
    has_tools = draw.random() < 0.3
    topics = [_sum, _opposite, _product if has_tools else _sum]
    for _ in range(draw.randint(1, 3)):
        messages += draw.choice(topics)(draw)
    return {"messages": messages, "tools": [CALCULATOR]} if has_tools else {"messages": messages}


def _exchange(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _sum(draw: random.Random) -> list[dict[str, Any]]:
    a, b = draw.randint(0, 20), draw.randint(0, 20)
    return _exchange(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.")


def _opposite(draw: random.Random) -> list[dict[str, Any]]:
    word, opposite = draw.choice(sorted(_OPPOSITES.items()))
    return _exchange(f"What is the opposite of {word}?", f"The opposite of {word} is {opposite}.")


def _product(draw: random.Random) -> list[dict[str, Any]]:
    a, b = draw.randint(2, 99), draw.randint(2, 99)
    function = {"name": "multiply", "arguments": json.dumps({"a": a, "b": b})}
    question, answer = _exchange(f"What is {a} times {b}?", f"{a} times {b} is {a * b}.")
    call = {"id": "call", "type": "function", "function": function}
    return [
        question,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call", "name": "multiply", "content": str(a * b)},
        answer,
    ]
