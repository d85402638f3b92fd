"""Templates in the files of a tokenizer: where they are, which one is taken, what it is given."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError
from dovetail.data.chat import ChatTemplate, load_chat_template


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("files", "name", "text", "with_tools"),
    [
        ({"chat_template.jinja": "J"}, "", "J", None),
        ({"tokenizer_config.json": {"chat_template": "C"}}, "", "C", None),
        (
            {"tokenizer_config.json": {"chat_template": "C"}, "chat_template.jinja": "J"},
            "",
            "J",
            None,
        ),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, "", "D", "T"),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, "tool_use", "T", None),
        (
            {"chat_template.jinja": "J", "additional_chat_templates/tool_use.jinja": "T"},
            "",
            "J",
            "T",
        ),
    ],
)
def test_places(
    tmp_path: Path, files: dict[str, Any], name: str, text: str, with_tools: str | None
) -> None:
    template = load_chat_template(write(tmp_path, files), name=name)
    assert (template.text, template.text_with_tools) == (text, with_tools)


def test_special_tokens(tmp_path: Path) -> None:
    config = {"chat_template": "C", "bos_token": {"content": "<s>"}, "eos_token": None}
    write(
        tmp_path, {"tokenizer_config.json": config, "special_tokens_map.json": {"pad_token": "p"}}
    )
    assert load_chat_template(tmp_path).special_tokens == {"bos_token": "<s>", "pad_token": "p"}


def test_errors_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a chat template, in .* or as chat_template"):
        load_chat_template(tmp_path)
    write(tmp_path, {"tokenizer_config.json": {"chat_template": NAMED}})
    with pytest.raises(ConfigError, match=r"no chat template 'rag'; there are \['default', 'tool"):
        load_chat_template(tmp_path, name="rag")
    write(tmp_path, {"tokenizer_config.json": {"chat_template": NAMED[1:]}})
    assert load_chat_template(tmp_path).text == "T"
    write(tmp_path, {"tokenizer_config.json": "{"})
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not JSON"):
        load_chat_template(tmp_path)


def test_what_a_template_is_given() -> None:
    text = "{{ bos_token }}{{ thinking_budget }}{{ messages }}{{ tools is none }}"
    text += "{{ strftime_now('%d') }}"
    template = ChatTemplate(
        text, {"bos_token": "<s>"}, variables={"thinking_budget": 3}, now=datetime(2026, 1, 31)
    )
    rendered = template.render([{"role": "user", "content": "a", "name": None, "reasoning": "r"}])
    message = {"thinking": "r", "role": "user", "content": "a", "reasoning": "r"}
    assert rendered == f"<s>3{[message | {'reasoning_content': 'r'}]}True31"


def test_another_template_for_tools() -> None:
    template = ChatTemplate("plain", text_with_tools="tools")
    assert template.render([]) == "plain"
    assert template.render([], tools=[{"name": "add"}]) == "tools"


def test_generation_blocks_are_removed_with_their_whitespace_control() -> None:
    text = "a {%- generation -%} b {% endgeneration %}\n  {% generation %}c{%- endgeneration -%} d"
    template = ChatTemplate(text, text_with_tools=text)
    plain = template.without_generation_blocks()
    assert "generation" not in plain.text + str(plain.text_with_tools)
    assert plain.render([]) == template.render([])
