"""The process that renders chat templates, seen from ours: started at first use, and replaced.

A template that takes too long, or too much memory, ends that process and not ours. `worker.py` is
its program; one process serves all templates.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.data.chat.errors import ChatTemplateError, ConversationError, Span

_PROGRAM = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class RenderLimits:
    """What the renderings of one conversation may take."""

    seconds: float = 10.0
    """CPU time, so that a busy machine does not count."""
    characters: int = 16_000_000
    """The length of each rendering."""
    megabytes: int = 1024
    """The address space of the process (Linux alone enforces it)."""


@dataclass(frozen=True)
class Rendering:
    """A rendered conversation, and the characters of its `{% generation %}` blocks."""

    text: str
    blocks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class MessagePrefix:
    """The first messages of a conversation, to be rendered."""

    count: int
    add_generation_prompt: bool = False


@dataclass(frozen=True)
class RenderRequest:
    """A template, its variables (the messages are one), and the prefixes to render.

    All prefixes of a conversation are one request, so that its messages are sent once.
    """

    template: str
    variables: Mapping[str, Any]
    prefixes: Sequence[MessagePrefix]


class Renderer:
    """A process that renders templates. Threads may share it; a forked process starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._of_parent: subprocess.Popen[str] | None = None

    def render(
        self, request: RenderRequest, limits: RenderLimits, now: datetime | None
    ) -> tuple[list[Rendering], bool]:
        """Renders, and says whether a template has read the clock."""
        message = {
            "template": request.template,
            "variables": request.variables,
            "prefixes": [(each.count, each.add_generation_prompt) for each in request.prefixes],
            "now": now.isoformat() if now else None,
            "seconds": limits.seconds,
            "characters": limits.characters,
            "megabytes": limits.megabytes,
        }
        with self._lock:
            answer = self._exchange(json.dumps(message), limits)
        if "kind" in answer:
            raise _error(answer["kind"], answer["message"], limits)
        renderings = [
            Rendering(each["text"], tuple((start, end) for start, end in each["blocks"]))
            for each in answer["renderings"]
        ]
        return renderings, answer["clock"]

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(BrokenPipeError), process:  # closes the pipes, and waits
                pass

    def forget(self) -> None:
        """Leaves the process to the parent of a forked process, which must not end it."""
        self._lock = threading.Lock()
        self._of_parent, self._process = self._process, None

    def _exchange(self, message: str, limits: RenderLimits) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(message + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        except BaseException:  # interrupted: the answer would be that of the next request
            self.close()
            raise
        if line:
            return dict(json.loads(line))
        code = process.wait()
        self.close()
        kind = "time" if code == -signal.SIGPROF else "memory" if code < 0 else "ended"
        return {"kind": kind, "message": f"exit code {code}"}

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            if importlib.util.find_spec("jinja2") is None:
                raise ConfigError(
                    "Chat templates need jinja2. Install it: pip install 'jinja2>=3.1.6'."
                )
            # -P: the folder of the program has modules with the names of others.
            command = [sys.executable, "-P", str(_PROGRAM)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._process = subprocess.Popen(command, text=True, encoding="utf-8", **pipes)
        return self._process


shared_renderer = Renderer()
atexit.register(shared_renderer.close)
os.register_at_fork(after_in_child=shared_renderer.forget)


def _error(kind: str, message: str, limits: RenderLimits) -> ConfigError:
    untrusted = "Templates are programs: use one from a source that you trust, or repair it."
    match kind:
        case "raised":
            return ConversationError(f"The chat template refuses the conversation: {message}")
        case "failed":
            return ConversationError(f"The chat template failed with this conversation: {message}")
        case "syntax":
            problem = f"The chat template is not valid Jinja, {message}. Repair it."
        case "security":
            problem = (
                f"The chat template reaches for Python's internals, and was stopped: {message}. "
                + untrusted
            )
        case "time":
            problem = (
                "The chat template did not end within RenderLimits.seconds = "
                f"{limits.seconds:g} of CPU time. {untrusted}"
            )
        case "memory":
            problem = (
                "The chat template wanted more memory than RenderLimits.megabytes = "
                f"{limits.megabytes}. {untrusted}"
            )
        case "size":
            problem = f"The chat template wrote {message} (RenderLimits.characters). {untrusted}"
        case "displaced":
            problem = (
                f"The text of a {{% generation %}} block, {message!r}, is not where the block is: "
                "the block is inside of a macro, a filter or a {% set %}, which moves or changes "
                "it. Put {% generation %} around the output itself."
            )
        case _:
            problem = f"The process that renders chat templates ended: {message}."
    return ChatTemplateError(problem)
