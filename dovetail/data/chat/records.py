"""Conversations, from the shapes that records of chat data have.

Every shape becomes messages in the form of transformers: a role, a content that is text, tool calls
whose arguments are objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.data.interfaces import BadRecord

ASSISTANT = "assistant"

# A closed list: some templates write `'<|' + role + '|>'`, so a role may not be any text.
ROLES = ("system", "developer", "user", ASSISTANT, "tool", "function", "ipython", "environment")

_SENDERS = {  # of ShareGPT and its relatives
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "observation": "tool",
    "tool_response": "tool",
}
RECORD_KEYS = (
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "history",
    "system",
    "tools",
)
"""The keys of a record that its conversation depends on, whatever its shape."""

_CALL_SENDERS = ("function_call", "tool_call")
_REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tools that the assistant may call.

    Attributes:
        name: says where the conversation is from, for messages.
        messages: dictionaries in the form of transformers.
        tools: the JSON schemas of the tools; None if there are none.
        trained: for each message, whether it is an answer to train on. It is False for an
            assistant's message with `"weight": 0`, as in OpenAI's files.
    """

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None
    trained: tuple[bool, ...]

    def as_record(self) -> dict[str, Any]:
        """Returns it as a record in OpenAI's shape, from which the same conversation is read."""
        messages = [
            message if trained or message["role"] != ASSISTANT else {**message, "weight": 0}
            for message, trained in zip(self.messages, self.trained, strict=True)
        ]
        return {"messages": messages, **({"tools": self.tools} if self.tools else {})}


class _Unfit(Exception):
    """What is wrong with a record."""


def read_conversation(record: object, name: str = "record") -> Conversation | BadRecord:
    """Returns the conversation of a record, or what is wrong with it.

    The shapes: `messages` (OpenAI), `conversations` (ShareGPT), `prompt` and `completion` (texts,
    or lists of messages), `instruction`, `input` and `output` (Alpaca); each may have `system` and
    `tools`.
    """
    try:
        if not isinstance(record, Mapping):
            raise _Unfit(f"expected an object, got {_kind(record)}")
        messages = [_message(each, n) for n, each in enumerate(_raw_messages(record))]
        if not any(each["role"] == ASSISTANT for each in messages):
            roles = [each["role"] for each in messages]
            raise _Unfit(f"no message of the assistant, so nothing to train on; the roles: {roles}")
        trained = tuple(
            each["role"] == ASSISTANT and each.pop("weight", 1) != 0 for each in messages
        )
        conversation = Conversation(name, tuple(messages), _tools(record.get("tools")), trained)
        # Nested values are whatever the record has, so they are tried at once.
        json.dumps([messages, conversation.tools], ensure_ascii=False).encode("utf-8")
    except _Unfit as error:
        return BadRecord(name, str(error))
    except (TypeError, ValueError, RecursionError) as error:  # also a lone surrogate
        return BadRecord(name, f"not valid JSON in UTF-8: {error}")
    return conversation


def _raw_messages(record: Mapping[str, Any]) -> list[Any]:
    shapes: dict[tuple[str, ...], Callable[[Mapping[str, Any]], list[Any]]] = {
        ("messages",): lambda found: _list(found, "messages"),
        ("conversations",): lambda found: [_from_sender(m) for m in _list(found, "conversations")],
        ("prompt", "completion"): _from_prompt,
        ("instruction", "output"): _from_instruction,
    }
    for keys, read in shapes.items():
        if all(record.get(key) is not None for key in keys):
            messages = read(record)
            system = record.get("system")
            return [{"role": "system", "content": system}, *messages] if system else messages
    raise _Unfit(
        f"its keys are {sorted(map(str, record))}; expected messages, conversations, prompt and "
        "completion, or instruction and output"
    )


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(record[key], list) or not record[key]:
        raise _Unfit(f"{key} is {_kind(record[key])}; expected a list of messages")
    return list(record[key])


def _from_sender(message: Any) -> Any:
    """Returns a message of ShareGPT's shape in OpenAI's; one in that already stays."""
    if not isinstance(message, Mapping) or "from" not in message:
        return message
    sender, value = message["from"], message.get("value")
    if sender in _CALL_SENDERS:
        calls = _parsed(value, f"the value of {sender}")
        calls = calls if isinstance(calls, list) else [calls]
        return {"role": ASSISTANT, "content": None, "tool_calls": calls}
    rest = {key: each for key, each in message.items() if key not in ("from", "value")}
    return {"role": _SENDERS.get(sender, sender), "content": value, **rest}


def _from_prompt(record: Mapping[str, Any]) -> list[Any]:
    sides = [("user", record["prompt"]), (ASSISTANT, record["completion"])]
    return [
        message
        for role, side in sides
        for message in (side if isinstance(side, list) else [{"role": role, "content": side}])
    ]


def _from_instruction(record: Mapping[str, Any]) -> list[Any]:
    """Returns the messages of an Alpaca record, with the earlier exchanges in its `history`."""
    given = record.get("input")
    question = f"{record['instruction']}\n\n{given}" if given else record["instruction"]
    exchanges = [*(record.get("history") or []), (question, record["output"])]
    return [
        {"role": role, "content": content}
        for exchange in exchanges
        for role, content in zip(("user", ASSISTANT), exchange, strict=True)
    ]


def _message(message: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, Mapping) or "role" not in message:
        keys = sorted(map(str, message)) if isinstance(message, Mapping) else _kind(message)
        raise _Unfit(f"{where} has no role; it is {keys}")
    if message["role"] not in ROLES:
        raise _Unfit(f"{where} has the role {message['role']!r}; expected one of {list(ROLES)}")
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _text(message.get("content"), where)
    if message.get("tool_calls") is not None:
        result["tool_calls"] = _tool_calls(message["tool_calls"], where)
    said = (result["content"], result.get("tool_calls"), *(result.get(key) for key in _REASONING))
    if result["role"] == ASSISTANT and not any(said):
        raise _Unfit(f"{where}, of the assistant, is empty: no content, reasoning or tool calls")
    return result


def _text(content: Any, where: str) -> str:
    """Returns the text of a content: a string, none (a tool call), or a list of pieces of text.

    Pieces are joined here, so that no two of them become a special token in a template.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _Unfit(f"{where}: the content is {_kind(content)}; expected text")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else _kind(part)
            raise _Unfit(
                f"{where}: a piece of its content is {kind!r}; only text can be trained on"
            )
    return "".join(part["text"] for part in content)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _Unfit(f"{where}: tool_calls is {_kind(calls)}; expected a list")
    return [_tool_call(call, where) for call in calls]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """Returns a call in transformers' form: the arguments are an object, not the text of one."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _Unfit(f"{where}: a tool call has no name: {str(call)[:80]}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed(arguments or "{}", f"{where}: the arguments of {function['name']}")
    if not isinstance(arguments, Mapping):
        raise _Unfit(f"{where}: the arguments of {function['name']} are {_kind(arguments)}")
    rest = {} if function is call else dict(call)
    return {**rest, "type": "function", "function": {**function, "arguments": dict(arguments)}}


def _tools(tools: Any) -> tuple[dict[str, Any], ...] | None:
    if not tools:
        return None
    found = _parsed(tools, "tools") if isinstance(tools, str) else tools
    if not isinstance(found, Sequence) or not all(isinstance(tool, Mapping) for tool in found):
        raise _Unfit(f"tools is {_kind(found)}; expected a list of JSON schemas")
    return tuple(dict(tool) for tool in found) or None


def _parsed(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise _Unfit(f"{what} is not JSON ({error}): {str(text)[:80]}") from error


def _kind(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
