"""Tasks in worker processes, with results cached on disk for one state of the sources."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from dovetail.config import import_packages
from dovetail.utils import atomic_write, user_cache_folder

PACKAGE = Path(__file__).parent.parent
# Called with the stage, and the number of tasks done and in all.
OnProgress = Callable[[str, int, int], None]

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
# These files only report results, so a change to them invalidates none.
_REPORTING = ("growth.py", "commits.py", "report.py", "scan")

# The programs run for seconds, so optimizing them costs more than it saves.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_QUICK_UNTIL_0_11 = " --xla_cpu_use_fusion_emitters=false"  # an unknown flag ends the process


@functools.cache
def fingerprint(imports: tuple[str, ...] = ()) -> str:
    """Returns a hash of the sources' syntax trees, and of the versions of Python and libraries.

    Cached results stay valid while it is the same: comments and line breaks may change. The sources
    of imported packages count, too.
    """
    versions = [f"{name} {metadata.version(name)}" for name in _LIBRARIES]
    digest = hashlib.sha256(f"{sys.version_info[:3]} {platform.machine()} {versions}".encode())
    for file in _sources(PACKAGE):
        name = file.relative_to(PACKAGE)
        if name.parts[0] == "modularity" and name.parts[1] in _REPORTING:
            continue
        digest.update(f"{name}\0{_content(file)}\0".encode())
    for package in imports:
        for file in _package_sources(sys.modules[package]):
            digest.update(f"{package} {file.name}\0{_content(file)}\0".encode())
    return digest.hexdigest()[:20]


def _content(file: Path) -> str:
    text = file.read_text()
    return ast.dump(ast.parse(text)) if file.suffix == ".py" else text


def _package_sources(module: ModuleType) -> list[Path]:
    """Returns the files of an imported package, or the one of a module."""
    if hasattr(module, "__path__"):
        return [file for folder in module.__path__ for file in _sources(Path(folder))]
    return [Path(module.__file__)] if module.__file__ else []


def _sources(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".toml"))


class ResultCache:
    """Results by key. Saved after each, so that an interrupted measurement can continue."""

    def __init__(self, name: str, imports: Sequence[str] = (), folder: Path | None = None) -> None:
        """Reads the results for the sources as they are, and as the imported packages are."""
        self.imports = tuple(sorted(imports))
        # Results with packages of the user do not replace those without.
        stem = "-".join([name, *self.imports])
        self._file = (folder or user_cache_folder() / "modularity") / f"{stem}.json"
        self._results: dict[str, Any] = {}
        if self._file.is_file():
            saved = json.loads(self._file.read_text())
            if saved["sources"] == fingerprint(self.imports):
                self._results = saved["results"]

    def get(self, key: str) -> Any:
        """Returns a result, or None."""
        return self._results.get(key)

    def update(self, results: dict[str, Any]) -> None:
        """Adds results and saves all."""
        self._results |= results
        self._file.parent.mkdir(parents=True, exist_ok=True)
        saved = {"sources": fingerprint(self.imports), "results": self._results}
        atomic_write(self._file, json.dumps(saved))


def run_in_processes(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    imports: Sequence[str] = (),
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields (task, result) for each task, as it completes; each process imports the packages."""
    if not tasks:
        return
    # Fresh processes: JAX cannot be forked once it has started threads.
    context = multiprocessing.get_context("spawn")
    start = functools.partial(_start_worker, imports)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=start) as pool:
        waiting = {pool.submit(work, *task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_cached(
    stage: str,
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    cache: ResultCache,
    on_progress: OnProgress,
) -> dict[tuple[Any, ...], Any]:
    """Returns the result of each task, from the cache where it is known."""
    keys = {task: " ".join(map(str, (stage, *task))) for task in tasks}
    results = {task: cache.get(key) for task, key in keys.items()}
    missing = [task for task, result in results.items() if result is None]
    on_progress(stage, len(results) - len(missing), len(results))
    found = run_in_processes(work, missing, jobs, cache.imports)
    for number, (task, result) in enumerate(found, start=1):
        results[task] = result
        cache.update({keys[task]: result})
        on_progress(stage, len(results) - len(missing) + number, len(results))
    return results


def _start_worker(imports: Sequence[str]) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    quick = _QUICK + (_QUICK_UNTIL_0_11 if jax.__version_info__ < (0, 11) else "")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"
    from dovetail.runtime import use_compilation_cache

    use_compilation_cache()
    if imports:
        import_packages(imports)
