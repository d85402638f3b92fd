"""A chat template: from a list of messages to the text that a model was trained on.

It is rendered as transformers does, in a process with limits (`renderer.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.data.chat.errors import ChatTemplateError
from dovetail.data.chat.renderer import (
    MessagePrefix,
    Rendering,
    RenderLimits,
    RenderRequest,
    shared_renderer,
)
from dovetail.data.pretrained_tokenizer import CONFIG_FILE, TEMPLATES

TEMPLATE_FILE = "chat_template.jinja"
_DEFAULT, _WITH_TOOLS = "default", "tool_use"

# The tokens that transformers passes to a template, under these names.
_TOKEN_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

_BLOCK_TAGS = re.compile(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}")

Message = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """A Jinja template and what it is rendered with."""

    text: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Such as `{"bos_token": "<s>", "eos_token": "</s>"}`; variables of the template."""
    text_with_tools: str | None = None
    """The template of conversations with tools, if it is another one."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """More variables, such as `enable_thinking`."""
    now: datetime | None = None
    """The moment that `strftime_now` gives. None is the present, which training refuses."""
    limits: RenderLimits = field(default_factory=RenderLimits)

    def text_for(self, has_tools: bool) -> str:
        """Returns the template of conversations with tools, or without."""
        return (self.text_with_tools if has_tools else None) or self.text

    def without_generation_blocks(self) -> ChatTemplate:
        """Returns the template without `{% generation %}`: answers are found by their prompts."""
        with_tools = self.text_with_tools
        return replace(
            self,
            text=_BLOCK_TAGS.sub(_kept_whitespace, self.text),
            text_with_tools=with_tools and _BLOCK_TAGS.sub(_kept_whitespace, with_tools),
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the text of a conversation.

        Args:
            messages: dictionaries with a role and a content, in transformers' form.
            tools: the JSON schemas of tools that the assistant may call.
            add_generation_prompt: whether to end with the beginning of an assistant's turn.
        """
        whole = MessagePrefix(len(messages), add_generation_prompt)
        return self._render(messages, tools, [whole])[0][0].text

    def render_prefixes(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        prefixes: Sequence[MessagePrefix],
    ) -> list[Rendering]:
        """Returns prefixes of a conversation with their generation blocks, for training.

        A text that depends on today's date is refused.
        """
        renderings, read_clock = self._render(messages, tools, prefixes)
        if read_clock and self.now is None:
            raise ChatTemplateError(
                "The chat template writes today's date (strftime_now), so tomorrow the same "
                "conversation would have other tokens. Set the date: "
                "ChatTemplate(..., now=datetime(2026, 1, 1))."
            )
        return renderings

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        prefixes: Sequence[MessagePrefix],
    ) -> tuple[list[Rendering], bool]:
        variables = {
            "tools": list(tools) if tools is not None else None,
            "documents": None,
            **self.special_tokens,
            **self.variables,
            "messages": [_prepared(message) for message in messages],
        }
        request = RenderRequest(self.text_for(tools is not None), variables, prefixes)
        return shared_renderer.render(request, self.limits, self.now)


def _kept_whitespace(tag: re.Match[str]) -> str:
    """Returns a tag without effect that trims the whitespace around it in the same way."""
    return f"{{%{tag[1]} if true %}}{{% endif {tag[2]}%}}"


def _prepared(message: Message) -> dict[str, Any]:
    """Returns a message as transformers passes it on: no None, reasoning under both names."""
    present = {key: value for key, value in message.items() if value is not None}
    for name in ("reasoning_content", "thinking", "reasoning"):
        if name in present:
            return {"thinking": present[name], **present, "reasoning_content": present[name]}
    return present


def load_chat_template(
    folder: Path,
    variables: Mapping[str, Any] | None = None,
    now: datetime | None = None,
    name: str = "",
) -> ChatTemplate:
    """Reads the chat template beside a `tokenizer.json`.

    Args:
        folder: has `chat_template.jinja`, or a `chat_template` in `tokenizer_config.json`.
        variables: more variables of the template, such as `enable_thinking`.
        now: the moment that `strftime_now` gives.
        name: which one, if there are several; empty takes the default one, and `tool_use` for
            conversations with tools.
    """
    config = _read_json(folder / CONFIG_FILE)
    named = _named_templates(folder, config)
    if not named:
        raise ConfigError(
            f"{folder}: expected a chat template, in {TEMPLATE_FILE} or as chat_template in "
            f"{CONFIG_FILE}; found none. A base model has none: write one there, or pass "
            "ChatTemplate(text, special_tokens)."
        )
    wanted = name or (_DEFAULT if _DEFAULT in named or len(named) > 1 else next(iter(named)))
    if wanted not in named:
        raise ConfigError(
            f"{folder}: there is no chat template {wanted!r}; there are {sorted(named)}. Pass one "
            "of these names."
        )
    return ChatTemplate(
        named[wanted],
        read_special_tokens(folder),
        None if name else named.get(_WITH_TOOLS),
        variables or {},
        now,
    )


def _named_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the templates by name; a file wins over the config, as in transformers."""
    files = {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        files[_DEFAULT] = folder / TEMPLATE_FILE
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    found = config.get("chat_template")
    if isinstance(found, list):
        return {str(each["name"]): str(each["template"]) for each in found}
    return {_DEFAULT: str(found)} if found else {}


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Returns the named tokens of a tokenizer's files, such as `{"eos_token": "</s>"}`."""
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / CONFIG_FILE)
    # They are strings, or objects with a `content`.
    tokens = {name: config.get(name) for name in _TOKEN_NAMES}
    return {
        name: str(token["content"] if isinstance(token, dict) else token)
        for name, token in tokens.items()
        if token is not None
    }


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}. Restore the file.") from error
    return content if isinstance(content, dict) else {}
