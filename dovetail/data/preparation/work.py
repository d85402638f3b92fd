"""The work of preparing a corpus: two passes over its pieces, here or in worker processes.

A worker is a process of its own (`python -m dovetail.data.preparation.worker`). It gets the configs
of the corpus and the tokenizer as text, then one task a line, and answers one line a task. Nothing
is pickled, and no module of the user's program is run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config import Config, ConfigError, imported_packages, to_text
from dovetail.data.interfaces import ShardedCorpus, Tokenizer
from dovetail.data.preparation.encoding import encode_piece
from dovetail.data.preparation.ledger import Ledger
from dovetail.data.preparation.pieces import CorpusPiece
from dovetail.data.preparation.survey import Advance, survey_piece
from dovetail.utils import cpu_cores

SURVEY, ENCODE = "survey", "tokens"

# Below this a pass runs here: to start workers would take longer. A survey reads some 200 MB/s.
_MIN_BYTES_FOR_WORKERS = {SURVEY: 512 * 2**20, ENCODE: 16 * 2**20}


@dataclass(frozen=True)
class Pass:
    """One pass over all pieces.

    Attributes:
        name: `SURVEY` or `ENCODE`.
        folder: where files and ledger are.
        held_out_limit: for the second pass.
    """

    name: str
    folder: Path
    held_out_limit: int = -1

    @property
    def ledger(self) -> Ledger:
        """The ledger of this pass."""
        return Ledger(self.folder, self.name)

    def run(
        self, corpus: ShardedCorpus, tokenizer: Tokenizer, piece: CorpusPiece, advance: Advance
    ) -> dict[str, Any]:
        """Does a piece."""
        if self.name == SURVEY:
            return survey_piece(corpus, piece, self.ledger, advance)
        limit = self.held_out_limit
        return encode_piece(corpus, tokenizer, piece, limit, self.ledger, advance)


@dataclass(frozen=True)
class Sources:
    """What is prepared: a corpus and its tokenizer, with configs for workers if they have some."""

    corpus: ShardedCorpus
    tokenizer: Tokenizer
    configs: tuple[Config[Any], Config[Any]] | None
    tokenizer_folder: Path
    """The trained tokenizer, from the second pass on."""


def run_pass(
    this: Pass, sources: Sources, pieces: Sequence[CorpusPiece], advance: Advance
) -> list[dict[str, Any]]:
    """Does all pieces that are not done, and returns the results of all."""
    done = {piece.number: this.ledger.done(piece.number) for piece in pieces}
    results = {number: result for number, result in done.items() if result is not None}
    missing = [piece for piece in pieces if piece.number not in results]
    advance(sum(piece.size for piece in pieces if piece.number in results))
    count = min(len(missing), cpu_cores())
    is_large = sum(piece.size for piece in missing) >= _MIN_BYTES_FOR_WORKERS[this.name]
    if sources.configs is not None and is_large and count > 1:
        about = _about(this, sources.configs, sources.tokenizer_folder)
        results |= _in_workers(about, missing, count, advance)
    else:
        for piece in missing:
            results[piece.number] = this.run(sources.corpus, sources.tokenizer, piece, advance)
    return [results[piece.number] for piece in pieces]


def configs_for_workers(corpus: Any, tokenizer: Any) -> tuple[Config[Any], Config[Any]] | None:
    """Returns the configs of both; None if another process cannot import one of the classes.

    That is so for a class of a script or a notebook.
    """
    packages = {__name__.partition(".")[0], *imported_packages()}
    configs = (getattr(corpus, "config", None), getattr(tokenizer, "config", None))
    corpus_config, tokenizer_config = configs
    if not isinstance(corpus_config, Config) or not isinstance(tokenizer_config, Config):
        return None
    for built in (corpus, tokenizer):
        module = type(built).__module__
        if not any(module == name or module.startswith(f"{name}.") for name in packages):
            return None
    return corpus_config, tokenizer_config


def _about(
    this: Pass, configs: tuple[Config[Any], Config[Any]], tokenizer_folder: Path
) -> dict[str, Any]:
    """Returns the first line for a worker."""
    corpus, tokenizer = map(to_text, configs)
    return {
        "pass": this.name,
        "folder": str(this.folder),
        "held_out_limit": this.held_out_limit,
        "corpus": corpus,
        "tokenizer": tokenizer,
        "tokenizer_folder": str(tokenizer_folder) if this.name == ENCODE else None,
        "imports": sorted(imported_packages()),
    }


def _in_workers(
    about: dict[str, Any], pieces: Sequence[CorpusPiece], count: int, advance: Advance
) -> dict[int, dict[str, Any]]:
    """Returns the result of each piece, by its number."""
    todo = queue.SimpleQueue[CorpusPiece]()
    for piece in sorted(pieces, key=lambda piece: -piece.size):  # the largest last would be alone
        todo.put(piece)
    answers = queue.SimpleQueue[tuple[int, dict[str, Any]] | Exception]()
    workers = [_Worker(about, todo, answers, advance) for _ in range(count)]
    results: dict[int, dict[str, Any]] = {}
    try:
        while len(results) < len(pieces):
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            results[answer[0]] = answer[1]
        return results
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A worker process, and the thread that gives it pieces."""

    def __init__(
        self,
        about: dict[str, Any],
        todo: queue.SimpleQueue[CorpusPiece],
        answers: queue.SimpleQueue[tuple[int, dict[str, Any]] | Exception],
        advance: Advance,
    ) -> None:
        self._about, self._advance = about, advance
        self._todo, self._answers = todo, answers
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.data.preparation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # One thread each: the processes share the cores.
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
        self._thread = threading.Thread(target=self._run, name="dovetail-prepare", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the process, in the middle of a piece if need be: the ledger has the others."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _run(self) -> None:
        piece: CorpusPiece | None = None
        try:
            self._send(self._about)
            while True:
                piece = self._todo.get_nowait()
                self._answers.put((piece.number, self._ask(piece)))
        except queue.Empty:
            return
        except (OSError, ValueError) as error:
            self._answers.put(error if isinstance(error, ConfigError) else self._lost(piece))

    def _ask(self, piece: CorpusPiece) -> dict[str, Any]:
        self._send(piece.as_json())
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "error" in answer:
                raise ConfigError(answer["error"])
            if "result" in answer:
                return dict(answer["result"])
            self._advance(answer["bytes"])
        raise BrokenPipeError

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _lost(self, piece: CorpusPiece | None) -> Exception:
        code = self._process.wait()
        where = f" while it read {piece.shards[0].file}" if piece is not None else ""
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        hint = " The machine may have run out of memory." if code == -9 else ""
        return ChildProcessError(f"a worker that prepares data ended by {why}{where}.{hint}")
