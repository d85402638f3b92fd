"""A worker process of the preparation: reads tasks from standard input, and answers by lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.config import Error, from_text, import_packages
from dovetail.data.preparation.pieces import CorpusPiece, with_shards
from dovetail.data.preparation.work import Pass

Answer = Callable[[Mapping[str, Any]], None]

_SECONDS_BETWEEN_REPORTS = 0.2


class _Progress:
    """Tells the bytes that are done, a few times a second."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._bytes, self._told = 0, time.monotonic()

    def advance(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() - self._told >= _SECONDS_BETWEEN_REPORTS:
            self.tell()

    def tell(self) -> None:
        self._answer({"bytes": self._bytes})
        self._bytes, self._told = 0, time.monotonic()


def main() -> None:
    """Does what the lines of standard input ask for, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    answer = _own_output()
    about = json.loads(sys.stdin.readline())
    import_packages(about["imports"])
    corpus: Any = from_text(about["corpus"]).build()
    tokenizer: Any = from_text(about["tokenizer"]).build()
    if about["tokenizer_folder"] is not None:
        tokenizer.load(Path(about["tokenizer_folder"]))
    this = Pass(about["pass"], Path(about["folder"]), about["held_out_limit"])
    for line in sys.stdin:
        progress = _Progress(answer)
        try:
            piece = CorpusPiece.from_json(json.loads(line))
            result = this.run(with_shards(corpus), tokenizer, piece, progress.advance)
        except Error as error:
            answer({"error": str(error)})
        else:
            progress.tell()
            answer({"result": result})


def _own_output() -> Answer:
    """Keeps standard output for the answers: what a library prints goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Mapping[str, Any]) -> None:
        try:
            print(json.dumps(message), file=stream, flush=True)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone

    return answer


if __name__ == "__main__":
    main()
