"""Which files a corpus has: a file, a folder, a pattern or a URL, and their names in the corpus.

The names are relative to the folder that the user named, so that a moved folder is the same corpus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError, StorageError
from dovetail.data.sources.patterns import depth as depth_of
from dovetail.data.sources.patterns import matcher, split_pattern
from dovetail.data.sources.source_file import LocalFile, RemoteFile, SourceFile

_DEFAULT_SPLIT = "train"  # of a folder with several, as `datasets` writes them


@dataclass(frozen=True)
class Choice:
    """Which of the files to take; `where` is the path of the corpus's config, for messages."""

    include: Sequence[str]
    exclude: Sequence[str] = ()
    where: str = ""


def list_files(entries: Sequence[str], choice: Choice) -> list[SourceFile]:
    """Returns the files of all entries; the names of several folders begin with their own."""
    found = [(_root_of(entry), _list_entry(entry, choice)) for entry in entries]
    if len({root for root, _ in found}) > 1:
        tails = _distinct_tails([root for root, _ in found])
        found = [
            (root, [replace(file, name=f"{tails[root]}/{file.name}") for file in files])
            for root, files in found
        ]
    files: list[SourceFile] = [file for _, each in found for file in each]
    _refuse_twice(files, choice)
    return sorted(files, key=lambda file: file.name)


def find_files(
    root: Path,
    wanted: Callable[[str], bool],
    excluded_folders: Collection[str] = (),
    depth: int | None = None,
) -> list[LocalFile]:
    """Returns the files under `root` whose name (relative, with '/') is wanted, sorted by name.

    Descends `depth` levels (None: all of them); does not follow links.
    """

    def refuse(error: OSError) -> None:
        raise ConfigError(f"cannot list {error.filename}: {error.strerror}. Check its permissions.")

    found = []
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=False):
        # Pruned in place, so that the walk does not enter them: site-packages or a home folder can
        # be huge.
        at_max_depth = depth is not None and len(Path(folder).relative_to(root).parts) >= depth
        keep = [name for name in folders if name not in excluded_folders and not at_max_depth]
        folders[:] = keep
        for file in files:
            path = Path(folder, file)
            name = path.relative_to(root).as_posix()
            if wanted(name):
                found.append(LocalFile(name, path))
    return sorted(found, key=lambda file: file.name)


def is_url(entry: str) -> bool:
    """Says whether an entry is a URL of fsspec and not a local path."""
    return "://" in entry and not entry.startswith(("file://", "local://"))


def stem_of(entry: str) -> str:
    """Returns the name of the folder or file of an entry."""
    if is_url(entry):
        return split_pattern(entry.rstrip("/"))[0].rpartition("/")[2]
    return Path(split_pattern(str(_local(entry)))[0]).resolve().name


def _list_entry(entry: str, choice: Choice) -> Sequence[LocalFile | RemoteFile]:
    if is_url(entry):
        return _list_url(entry, choice)
    path = _local(entry)
    if path.is_file():
        return [LocalFile(path.name, path)]
    if path.is_dir():
        saved = _saved_dataset(path, choice)
        return _matching(path, choice.include, choice) if saved is None else saved
    root, pattern = split_pattern(str(path))
    if pattern and Path(root).is_dir():
        return _matching(Path(root), [pattern], choice)
    raise ConfigError(
        f"{_field(choice, 'files')}: there is no file or folder {str(path)!r} (relative paths "
        f"start at {Path.cwd()}). Set it to a folder, a file, a URL, or a pattern such as "
        "'notes/**/*.md'."
    )


def _matching(root: Path, patterns: Sequence[str], choice: Choice) -> list[LocalFile]:
    depth = depth_of(patterns)
    taken, left_out = matcher(patterns), matcher(choice.exclude)
    found = find_files(root, lambda name: taken(name) and not left_out(name), depth=depth)
    if not found:
        others = (file.path.suffix for file in find_files(root, lambda _: True, depth=depth))
        raise _no_match(str(root), patterns, others, choice)
    return found


def _no_match(root: str, patterns: Sequence[str], suffixes: Any, choice: Choice) -> ConfigError:
    others = sorted({suffix for suffix in suffixes if suffix})
    hint = f" It holds files that end in {', '.join(others[:8])}." if others else ""
    excluded = f" and is not left out by exclude={list(choice.exclude)}" if choice.exclude else ""
    shown = ", ".join(map(repr, patterns))
    return ConfigError(
        f"{_field(choice, 'files')}: no file in {root} matches {shown}{excluded}.{hint} "
        "Set include to the files to read, such as '**/*.md'."
    )


def _saved_dataset(folder: Path, choice: Choice) -> list[LocalFile] | None:
    """Returns the data files of a folder that `datasets` saved; None for any other folder.

    Of a DatasetDict, takes the split `train`; another one is named as `folder/validation`.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _read_json(folder / "dataset_dict.json").get("splits")
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        if _DEFAULT_SPLIT not in names:
            raise ConfigError(
                f"{_field(choice, 'files')}: {folder} is a DatasetDict without the split 'train'; "
                f"it has {', '.join(names) or 'none'}. Name one, such as "
                f"{folder / (names or ['validation'])[0]}."
            )
        folder = folder / _DEFAULT_SPLIT
    state = folder / "state.json"
    if not (state.is_file() and (folder / "dataset_info.json").is_file()):
        return None
    listed = _read_json(state).get("_data_files")
    files = [str(each.get("filename")) for each in listed or () if isinstance(each, dict)]
    if not files or any(Path(name).name != name for name in files):
        raise ConfigError(
            f"{state}: expected a list '_data_files' of file names, as datasets.save_to_disk "
            "writes it. Save the dataset again, or name its files."
        )
    return [LocalFile(name, folder / name) for name in files]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from error
    return found if isinstance(found, dict) else {}


def _list_url(url: str, choice: Choice) -> list[RemoteFile]:
    where = _field(choice, "files")
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url.rstrip("/"))
        return _find_remote(fs, path, url, choice)
    except (ConfigError, StorageError):
        raise
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{where}: {url} cannot be used: {error}.") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{where}: there is no file or folder {url!r}.") from error
    except PermissionError as error:
        raise ConfigError(f"{where}: {url} may not be read: {error}. Check the keys.") from error
    except Exception as error:  # libraries of object stores have errors of their own
        raise StorageError(f"{where}: {url} cannot be listed: {error!r}.") from error


def _find_remote(fs: Any, path: str, url: str, choice: Choice) -> list[RemoteFile]:
    root, pattern = split_pattern(path)
    # A web server answers for a folder, too, with a page of its files.
    if not pattern and not url.endswith("/") and fs.isfile(path):
        return [RemoteFile(path.rpartition("/")[2], path, fs, fs.info(path))]
    patterns = [pattern] if pattern else list(choice.include)
    depth = depth_of(patterns)
    listed: dict[str, Any] = fs.find(
        root, maxdepth=None if depth is None else depth + 1, detail=True
    )
    if not listed and not fs.exists(root):
        raise FileNotFoundError(root)
    named = {_relative(name, root): (name, info) for name, info in listed.items()}
    taken, left_out = matcher(patterns), matcher(choice.exclude)
    found = [
        RemoteFile(name, full, fs, info)
        for name, (full, info) in sorted(named.items())
        if taken(name) and not left_out(name)
    ]
    if not found:
        raise _no_match(url, patterns, (Path(name).suffix for name in named), choice)
    return found


def _relative(name: str, root: str) -> str:
    return name.removeprefix(root).lstrip("/")


def _local(entry: str) -> Path:
    for scheme in ("file://", "local://"):
        entry = entry.removeprefix(scheme)
    return Path(entry).expanduser()


def _root_of(entry: str) -> str:
    """Returns the folder that the names of an entry's files are relative to."""
    if is_url(entry):
        root, pattern = split_pattern(entry.rstrip("/"))
        is_file = not pattern and "." in root.rpartition("/")[2]
        return root.rpartition("/")[0] if is_file else root
    path = _local(entry)
    return str(path.parent if path.is_file() else Path(split_pattern(str(path))[0]))


def _distinct_tails(roots: Sequence[str]) -> dict[str, str]:
    """Returns the shortest ends of paths that tell them apart, all of one number of folders."""
    distinct = list(dict.fromkeys(roots))
    pieces = {root: [p for p in root.replace("://", "/").split("/") if p] for root in distinct}
    for count in range(1, max(map(len, pieces.values()), default=0) + 1):
        tails = {root: "/".join(pieces[root][-count:]) for root in distinct}
        if len(set(tails.values())) == len(distinct):
            return tails
    return {root: root for root in distinct}


def _refuse_twice(files: Sequence[SourceFile], choice: Choice) -> None:
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise ConfigError(
                f"{_field(choice, 'files')}: {file.name} is named twice, and its documents would "
                "be, too. Name each file once."
            )
        seen.add(file.name)


def _field(choice: Choice, name: str) -> str:
    return f"{choice.where}.{name}" if choice.where else name
