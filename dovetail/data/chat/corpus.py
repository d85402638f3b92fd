"""ChatFiles: the user's files of conversations, as a corpus with a loss on the answers alone.

A document is the JSON text of a conversation. What has no conversation is a bad record when files
are read; what the template refuses is one when tokens are made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import ConfigError
from dovetail.data.chat.encode import ChatEncoder
from dovetail.data.chat.records import RECORD_KEYS, read_conversation
from dovetail.data.chat.template import (
    TEMPLATE_FILE,
    ChatTemplate,
    load_chat_template,
    read_special_tokens,
)
from dovetail.data.interfaces import (
    BadRecord,
    Document,
    DocumentEncoder,
    EncodedDocument,
    Tokenizer,
)
from dovetail.data.pretrained_tokenizer import CONFIG_FILE
from dovetail.data.sources.files import Files
from dovetail.data.sources.formats import FileFormat
from dovetail.data.sources.source_file import SourceFile
from dovetail.data.sources.text_field import NoTextError, TextField

_VERSION = 1  # changes when the same conversation gives other tokens


class ConversationText(TextField):
    """Takes the conversation of a record as the text of a JSON object."""

    def __init__(self) -> None:
        super().__init__("")
        self.source = f"conversation/{_VERSION}"

    def text(self, record: Mapping[str, Any]) -> str:
        """Returns the conversation in OpenAI's shape, whatever the shape of the record."""
        found = read_conversation(record)
        if isinstance(found, BadRecord):
            raise NoTextError(found.problem)
        return json.dumps(found.as_record(), ensure_ascii=False)

    def columns(self, available: Iterable[str]) -> list[str]:
        """Returns those of a conversation; all if there is none, so that records say it."""
        names = list(dict.fromkeys(available))
        return [name for name in names if name in RECORD_KEYS] or names


class ChatFiles(Files):
    """The user's files of conversations: JSON Lines, Parquet, Arrow or ArrayRecord.

    A record has `messages` (OpenAI), `conversations` (ShareGPT), `prompt` and `completion`, or
    `instruction` and `output` (Alpaca). The template makes a text of it; its answers have a loss.
    """

    class Config(Files.Config):
        """Which files, and the chat template."""

        template: str = ""
        """A file with a chat template, or a folder with one; empty takes that of the tokenizer."""
        variables: dict[str, str | bool | int | float] = {}
        """Variables of the template, such as `enable_thinking`."""
        generation_blocks: bool = True
        """Whether to use `{% generation %}` blocks; False finds answers by their prompts alone."""
        date: str = ""
        """The date that the template writes, such as 2026-01-31, if it writes today's."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.text:
            raise ConfigError(
                f"{config.locate('text')}: a conversation has no text column, got {config.text!r}. "
                "Leave text out, or use Files to train on one column."
            )
        self._chat = config
        self._now = _moment(config)

    def record_text(self) -> TextField:
        """Takes conversations."""
        return ConversationText()

    def encoder(self, tokenizer: Tokenizer) -> DocumentEncoder:
        """Returns what makes tokens of a conversation; refuses a template that cannot."""
        if not hasattr(tokenizer, "encode_with_offsets"):
            raise ConfigError(
                f"corpus {self.name}: {type(tokenizer).__name__} does not say which characters a "
                "token has, and answers are found by their characters. Give it encode_with_offsets "
                "and special_tokens (HasOffsets), or use PretrainedTokenizer."
            )
        chat = ChatEncoder(self._template(tokenizer), tokenizer)  # type: ignore[arg-type]  # checked

        def encode(document: Document) -> list[EncodedDocument] | BadRecord:
            found = chat.encode(json.loads(document.text), self._where(document.name))
            if isinstance(found, BadRecord):
                return found
            return [EncodedDocument(each.ids, each.weights.astype(np.uint8)) for each in found]

        return encode

    def encoder_fingerprint(self, tokenizer: Tokenizer) -> str:
        """Returns a hash of the template and of its variables."""
        template = self._template(tokenizer)
        parts = [
            template.text,
            template.text_with_tools,
            dict(template.special_tokens),
            dict(template.variables),
            self._chat.date,
        ]
        content = json.dumps(parts, sort_keys=True).encode()
        return f"chat/{_VERSION}/{hashlib.blake2b(content, digest_size=16).hexdigest()}"

    def _template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """Returns the template that the config names, or that of the tokenizer."""
        found = self._read_template(tokenizer)
        return found if self._chat.generation_blocks else found.without_generation_blocks()

    def _read_template(self, tokenizer: Tokenizer) -> ChatTemplate:
        variables, path = dict(self._chat.variables), Path(self._chat.template).expanduser()
        of_tokenizer: Path | None = getattr(tokenizer, "folder", None)
        where = self._chat.locate("template")
        if self._chat.template and not path.exists():
            raise ConfigError(f"{where}: there is no {str(path)!r}. Name a file or a folder.")
        if self._chat.template and path.is_file():
            special = read_special_tokens(of_tokenizer) if of_tokenizer else {}
            text = path.read_text(encoding="utf-8")
            return ChatTemplate(text, special, variables=variables, now=self._now)
        folder = path if self._chat.template else of_tokenizer
        if folder is None:
            raise ConfigError(
                f"{where}: expected a chat template, because {type(tokenizer).__name__} has none. "
                f"Name a file, or a folder with {TEMPLATE_FILE} or {CONFIG_FILE}; or take the "
                "tokenizer of a chat model (--with from-run:path=RUN)."
            )
        return load_chat_template(folder, variables, self._now)

    def _where(self, name: str) -> str:
        """Returns where a document is, as readers say it: the file and its line or row."""
        file, _, number = name.rpartition("#")
        return f"{self._by_name[file].where}:{number}"

    @cached_property
    def _found(self) -> tuple[list[SourceFile], FileFormat]:
        files, format = super()._found
        if files and not format.has_records:
            raise ConfigError(
                f"{files[0].where} is {format.title}, which has no conversations. Expected records "
                "with messages, one a line (JSON Lines) or one a row (Parquet, Arrow)."
            )
        return files, format


def _moment(config: ChatFiles.Config) -> datetime | None:
    try:
        return datetime.fromisoformat(config.date) if config.date else None
    except ValueError as error:
        raise ConfigError(
            f"{config.locate('date')}: expected a date such as 2026-01-31, got {config.date!r}."
        ) from error
