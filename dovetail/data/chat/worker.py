"""The program of the process that renders chat templates: a sandbox inside of limits.

A chat template is code from somebody else. Jinja's sandbox keeps it from Python's internals, but
not from `'a' * 10**10` or three nested loops, so it runs in a process of its own, with limits that
the kernel enforces. The parent is `renderer.py`; both write one JSON object a line.

This file is run by its path, and imports nothing of Dovetail: the process starts in a tenth of a
second and holds nothing that a template could want.
"""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEGABYTE = 2**20


class RefusedRequest(Exception):
    """What is wrong with a rendering, and of which kind it is."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class GenerationBlocks(Extension):
    """`{% generation %}...{% endgeneration %}`: notes where its text is in what is rendered."""

    tags = {"generation"}
    written = 0
    blocks: list[tuple[int, str]]

    def parse(self, parser: Parser) -> nodes.Node:
        """Turns the block into a call, so that its text passes through `_note`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_note")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _note(self, caller: Macro) -> str:
        text = str(caller())
        self.blocks.append((self.written, text))
        return text


class PlainNamespace(Namespace):
    """A namespace without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=...)` works
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot store {name!r}")


class PlainDict:
    """`dict` for templates: a call, and no type whose attributes lead elsewhere."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Returns a dictionary."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Returns a dictionary with these keys."""
        return dict.fromkeys(*args)


class Clock:
    """`strftime_now`, of a fixed moment if there is one; says whether it was read."""

    def __init__(self) -> None:
        self.now: datetime | None = None
        self.was_read = False

    def __call__(self, form: str) -> str:
        """Returns the time in a format."""
        self.was_read = True
        return (self.now or datetime.now()).strftime(form)


def _raise_exception(message: str) -> None:
    raise RefusedRequest("raised", str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON without escapes for HTML, which Jinja's own filter has."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


CLOCK = Clock()


@functools.lru_cache(maxsize=64)
def compiled(text: str) -> jinja2.Template:
    """Returns a template, in the environment that transformers makes for it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = CLOCK
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment.from_string(text)


def render(text: str, variables: dict[str, Any], max_characters: int) -> dict[str, Any]:
    """Returns the rendered text and where the text of its generation blocks is."""
    template = compiled(text)
    tracker = template.environment.extensions[GenerationBlocks.identifier]
    assert isinstance(tracker, GenerationBlocks)
    tracker.blocks, tracker.written = [], 0
    pieces = []
    for piece in template.generate(**variables):
        pieces.append(piece)
        tracker.written += len(piece)
        if tracker.written > max_characters:
            raise RefusedRequest("size", f"more than {max_characters} characters")
    rendered = "".join(pieces)
    for start, block in tracker.blocks:
        if rendered[start : start + len(block)] != block:
            raise RefusedRequest("displaced", block[:200])
    return {
        "text": rendered,
        "blocks": [(start, start + len(block)) for start, block in tracker.blocks],
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the renderings of a request, or what is wrong with it."""
    CLOCK.now = datetime.fromisoformat(request["now"]) if request["now"] else None
    CLOCK.was_read = False
    try:
        variables, results = request["variables"], []
        for count, prompt in request["prefixes"]:
            prefix = {"messages": variables["messages"][:count], "add_generation_prompt": prompt}
            results.append(
                render(request["template"], {**variables, **prefix}, request["characters"])
            )
        return {"renderings": results, "clock": CLOCK.was_read}
    except RefusedRequest as error:
        return {"kind": error.kind, "message": str(error)}
    except jinja2.TemplateSyntaxError as error:
        return {"kind": "syntax", "message": f"line {error.lineno}: {error.message}"}
    except jinja2.exceptions.SecurityError as error:
        return {"kind": "security", "message": str(error)}
    except MemoryError:
        return {"kind": "memory", "message": ""}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        message = f"{type(error).__name__}: {error}"[:1000]
        return {"kind": "failed", "message": message}


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the process after so much CPU time: no handler, so not even C code can go on."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory(megabytes: int) -> None:
    """Limits the address space, where the system can; and forbids files and core dumps."""
    limits = [
        (resource.RLIMIT_AS, megabytes * MEGABYTE),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]
    for kind, limit in limits:
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of the address space
            resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


def main() -> None:
    """Answers requests until the parent closes the pipe."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    for line in sys.stdin:
        request = json.loads(line)
        limit_memory(request["megabytes"])
        with time_limit(request["seconds"]):
            result = json.dumps(answer(request))
        print(result, flush=True)


if __name__ == "__main__":
    main()
