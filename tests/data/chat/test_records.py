"""Records of chat data: their shapes, and what is wrong with those that fit none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.data.chat import Conversation, read_conversation
from dovetail.data.interfaces import BadRecord

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}

SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "messages": ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER, ANSWER]),
    "pieces of text": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ANSWER]},
        [USER, ANSWER],
    ),
    "sharegpt": (
        {
            "system": "s",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        },
        [SYSTEM, USER, ANSWER],
    ),
    "sharegpt with a call": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "2"},
                {"from": "gpt", "value": "b"},
            ]
        },
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "2"},
            ANSWER,
        ],
    ),
    "prompt": ({"prompt": "a", "completion": "b"}, [USER, ANSWER]),
    "prompt of messages": (
        {"prompt": [SYSTEM, USER], "completion": [ANSWER]},
        [SYSTEM, USER, ANSWER],
    ),
    "alpaca": ({"instruction": "a", "input": "", "output": "b"}, [USER, ANSWER]),
    "alpaca with input": (
        {"instruction": "a", "input": "i", "output": "b", "system": "s"},
        [SYSTEM, {"role": "user", "content": "a\n\ni"}, ANSWER],
    ),
    "alpaca with history": (
        {"instruction": "a", "output": "b", "history": [["x", "y"]]},
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, USER, ANSWER],
    ),
    "arguments as text": (
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "function": {"name": "add", "arguments": '{"x": 1}'}}
                    ],
                },
            ]
        },
        [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", **CALL}]}],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    record, messages = SHAPES[name]
    conversation = read_conversation(record)
    assert isinstance(conversation, Conversation), conversation
    assert list(conversation.messages) == messages
    assert conversation.trained == tuple(each["role"] == "assistant" for each in messages)


def test_tools_and_weights() -> None:
    messages = [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]
    conversation = read_conversation({"messages": messages, "tools": '[{"name": "add"}]'})
    assert isinstance(conversation, Conversation)
    assert conversation.tools == ({"name": "add"},)
    assert conversation.trained == (False, False, False, True)
    assert all("weight" not in message for message in conversation.messages)


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {**ANSWER, **fields}]}


BAD = {
    "expected an object, got list": [1],
    r"its keys are \['text'\]; expected messages, conversations, prompt": {"text": "a"},
    r"expected messages, conv": {"messages": None},
    "messages is list '\\[\\]'; expected a list": {"messages": []},
    "messages is str 'abc'": {"messages": "abc"},
    "message 0 has no role; it is \\['content'\\]": {"messages": [{"content": "a"}]},
    "message 1 has the role 'end|><|system'; expected one of".replace("|", r"\|"): message(
        role="end|><|system"
    ),
    r"message 0 has the role 'narrator'": {"conversations": [{"from": "narrator", "value": "a"}]},
    "message 1: the content is int '5'": message(content=5),
    "message 1: a piece of its content is 'image_url'; only text": message(
        content=[{"type": "image_url", "image_url": "x"}]
    ),
    r"no message of the assistant, .* roles: \['user'\]": {"messages": [USER]},
    "message 1, of the assistant, is empty": message(content=""),
    "message 1: tool_calls is str": message(tool_calls="add"),
    "message 1: a tool call has no name": message(tool_calls=[{"function": {}}]),
    "message 1: the arguments of add is not JSON": message(
        tool_calls=[{"function": {"name": "add", "arguments": "{x"}}]
    ),
    "message 1: the arguments of add are list": message(
        tool_calls=[{"function": {"name": "add", "arguments": "[1]"}}]
    ),
    "tools is dict": {**message(), "tools": {"name": "add"}},
    "the value of function_call is not JSON": {
        "conversations": [{"from": "function_call", "value": "add(1)"}]
    },
    "not valid JSON in UTF-8: .*surrogates": message(content="\ud800"),
    "not valid JSON in UTF-8: .*set": message(extra={1, 2}),
}


@pytest.mark.parametrize("problem", BAD)
def test_bad_records(problem: str) -> None:
    found = read_conversation(BAD[problem], "corpus:7")
    assert isinstance(found, BadRecord)
    assert found.name == "corpus:7"
    with pytest.raises(ValueError, match=problem):
        raise ValueError(found.problem)


@pytest.mark.parametrize(
    "record", [*BAD.values(), {"messages": [[]]}, {"conversations": [3]}, None]
)
def test_no_record_raises(record: Any) -> None:
    assert isinstance(read_conversation(record), BadRecord)


@pytest.mark.parametrize("name", SHAPES)
def test_a_conversation_is_read_again_from_its_own_record(name: str) -> None:
    found = read_conversation(SHAPES[name][0])
    assert isinstance(found, Conversation)
    assert read_conversation(json.loads(json.dumps(found.as_record()))) == found


def test_answers_that_are_not_trained_on_stay_so() -> None:
    found = read_conversation({"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]})
    assert isinstance(found, Conversation)
    again = read_conversation(json.loads(json.dumps(found.as_record())))
    assert isinstance(again, Conversation)
    assert again.trained == (False, False, False, True)
    assert again == found
