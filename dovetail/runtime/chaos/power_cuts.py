"""The files that a power cut leaves, by the system calls of the program that wrote them.

A program runs under strace (`trace_command`), and `PowerCuts` replays its system calls. A file's
content is durable as of its last fsync. The names in a folder are durable as of the folder's last
fsync. Anything else may or may not be on disk after a power cut. So each moment has two images: one
with the durable names, and one with all names. Both have only the durable content of files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = (
    "openat,open,creat,close,write,pwrite64,writev,pwritev,ftruncate,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,dup,dup2,dup3,fcntl,link,linkat,"
    "clone,clone3,fork,vfork,sendfile,copy_file_range,truncate,fallocate,symlink,symlinkat"
)
_NEW_PROCESS = ("clone", "clone3", "fork", "vfork")
_HEX = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"')
_LINE = re.compile(rb"(\d+) +(.*)", re.DOTALL)
_RESUMED = re.compile(rb"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_CALL = re.compile(rb"(\w+)\((.*)\) += (-?\d+)", re.DOTALL)


def trace_command(trace: Path) -> list[str]:
    """Returns the words before a command that write its system calls to a file."""
    tracer = ["strace", "-f", "--seccomp-bpf", "-xx", "-s", "10000000"]
    return [*tracer, "-e", f"trace={_CALLS}", "-o", str(trace)]


@dataclass
class _TracedFile:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class _TracedFolder:
    names: dict[str, _TracedFile | _TracedFolder] = field(default_factory=dict)
    durable: dict[str, _TracedFile | _TracedFolder] = field(default_factory=dict)


Image = dict[str, bytes | None]
"""The content of each file by its path; None for a folder."""


class PowerCuts:
    """Replays the calls of a trace on files below a folder. The folder itself is durable."""

    def __init__(self, trace: Path, root: Path) -> None:
        """Reads the trace."""
        self._root = str(root)
        self._top = _TracedFolder()
        self._open: dict[int, tuple[_TracedFile | _TracedFolder, int]] = {}
        self._calls = list(_calls(trace))
        self.unknown: list[str] = []

    def last(self) -> tuple[Image, Image]:
        """Returns the two images after the last call: with durable names, and with all names."""
        for name, arguments, result in self._calls:
            if result >= 0:
                self._apply(name, arguments, result)
        return self._image(is_durable=True), self._image(is_durable=False)

    def images(self) -> Iterator[tuple[str, Image, Image]]:
        """Yields the name of each call that gives new images, and the two images after it."""
        seen: set[bytes] = set()
        for name, arguments, result in self._calls:
            if result < 0 or not self._apply(name, arguments, result):
                continue
            durable, visible = self._image(is_durable=True), self._image(is_durable=False)
            key = _key(durable) + _key(visible)
            if key not in seen:
                seen.add(key)
                yield name, durable, visible

    def _image(self, is_durable: bool) -> Image:
        image: Image = {}

        def walk(folder: _TracedFolder, prefix: str) -> None:
            for name, node in (folder.durable if is_durable else folder.names).items():
                if isinstance(node, _TracedFolder):
                    image[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                else:
                    image[prefix + name] = node.durable

        walk(self._top, "")
        return image

    def _apply(self, name: str, arguments: bytes, result: int) -> bool:
        """Applies a call; returns whether it changed something below the root."""
        strings = [bytes.fromhex(s.replace(b"\\x", b"").decode()) for s in _HEX.findall(arguments)]
        if name in ("open", "openat", "creat"):
            return self._opened(self._path(arguments, strings), arguments, result)
        if name in ("mkdir", "mkdirat"):
            return self._add(self._path(arguments, strings), _TracedFolder())
        if name in ("unlink", "unlinkat", "rmdir"):
            return self._add(self._path(arguments, strings), None)
        if name in ("rename", "renameat", "renameat2"):
            return self._rename(strings[0].decode(), strings[1].decode())
        if name in ("link", "linkat"):
            return self._link(strings[0].decode(), strings[1].decode())
        number = re.match(rb"\d+", arguments)
        descriptor = int(number[0]) if number else -1
        if descriptor not in self._open:
            return False
        return self._apply_to_open(descriptor, name, arguments, strings, result)

    def _apply_to_open(
        self, descriptor: int, name: str, arguments: bytes, strings: Sequence[bytes], result: int
    ) -> bool:
        """Applies a call on an open file or folder."""
        if name == "close":
            del self._open[descriptor]
            return False
        node, position = self._open[descriptor]
        if name in ("fsync", "fdatasync"):
            if isinstance(node, _TracedFile):
                node.durable = bytes(node.content)
            else:
                node.durable = dict(node.names)
            return True
        if name in ("write", "writev") and isinstance(node, _TracedFile):
            data = b"".join(strings)[:result]
            node.content[position : position + len(data)] = data
            self._open[descriptor] = (node, position + len(data))
            return True
        if name in ("dup", "dup2", "dup3") or b"F_DUPFD" in arguments:
            self._open[result] = (node, position)
            return False
        if name == "fcntl":
            return False  # a lock
        self.unknown.append(name)  # one that would have to be modelled
        return False

    def _path(self, arguments: bytes, strings: Sequence[bytes]) -> str:
        """Returns the path of a call; a path relative to a descriptor becomes absolute."""
        path = strings[0].decode()
        number = re.match(rb"(\d+), ", arguments)
        if not path.startswith("/") and number and int(number[1]) in self._open:
            node = self._open[int(number[1])][0]
            found = self._find(node)
            return path if found is None else f"{self._root}/{found}{path}"
        return path

    def _find(self, wanted: _TracedFile | _TracedFolder) -> str | None:
        """Returns the path of an open folder, which may have been renamed."""

        def walk(folder: _TracedFolder, prefix: str) -> str | None:
            if folder is wanted:
                return prefix
            inner = [
                (n, node) for n, node in folder.names.items() if isinstance(node, _TracedFolder)
            ]
            found = (walk(node, f"{prefix}{name}/") for name, node in inner)
            return next((path for path in found if path is not None), None)

        return walk(self._top, "")

    def _parent(self, path: str) -> tuple[_TracedFolder, str] | None:
        """Returns the folder and the name of a path below the root."""
        if not path.startswith(self._root + "/"):
            return None
        folder, (*above, name) = self._top, path[len(self._root) + 1 :].split("/")
        for part in above:
            inner = folder.names[part]
            assert isinstance(inner, _TracedFolder)
            folder = inner
        return folder, name

    def _opened(self, path: str, arguments: bytes, descriptor: int) -> bool:
        if path == self._root:
            self._open[descriptor] = (self._top, 0)
            return False
        found = self._parent(path)
        if found is None:
            self._open.pop(descriptor, None)
            return False
        folder, name = found
        node, is_new = folder.names.get(name), False
        if node is None:
            node, is_new = _TracedFile(), True
            folder.names[name] = node
        if isinstance(node, _TracedFile) and b"O_TRUNC" in arguments:
            node.content.clear()
            is_new = True
        end = len(node.content) if isinstance(node, _TracedFile) and b"O_APPEND" in arguments else 0
        self._open[descriptor] = (node, end)
        return is_new

    def _link(self, old: str, new: str) -> bool:
        """Adds a name for a file. A file from outside the folder is read as it is now."""
        target = self._parent(new)
        if target is None:
            return False
        source = self._parent(old)
        node = (
            source[0].names[source[1]] if source else _TracedFile(bytearray(Path(old).read_bytes()))
        )
        target[0].names[target[1]] = node
        return True

    def _add(self, path: str, node: _TracedFolder | None) -> bool:
        found = self._parent(path)
        if found is None:
            return False
        folder, name = found
        if node is None:
            del folder.names[name]
        else:
            folder.names[name] = node
        return True

    def _rename(self, old: str, new: str) -> bool:
        source, target = self._parent(old), self._parent(new)
        if source is None or target is None:
            return False
        target[0].names[target[1]] = source[0].names.pop(source[1])
        return True


def write_image(image: Image, folder: Path) -> None:
    """Makes the files of an image."""
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


def _key(image: Image) -> bytes:
    return hashlib.sha256(repr(sorted(image.items())).encode()).digest()


def _calls(trace: Path) -> Iterator[tuple[str, bytes, int]]:
    """Yields name, arguments and result of the calls, in the order of their ends.

    Calls of child processes are left out, because their descriptors have other meanings.
    """
    calls = list(_calls_of_all(trace))
    parents = {
        b"%d" % result: thread
        for thread, name, arguments, result in calls
        if name in _NEW_PROCESS and b"CLONE_THREAD" not in arguments
    }
    threads = {
        b"%d" % result: thread
        for thread, name, arguments, result in calls
        if name in _NEW_PROCESS and b"CLONE_THREAD" in arguments
    }

    def is_foreign(thread: bytes) -> bool:
        while thread in threads:
            thread = threads[thread]
        return thread in parents

    for thread, name, arguments, result in calls:
        if name not in _NEW_PROCESS and not is_foreign(thread):
            yield name, arguments, result


def _calls_of_all(trace: Path) -> Iterator[tuple[bytes, str, bytes, int]]:
    begun: dict[bytes, bytes] = {}
    for line in trace.read_bytes().splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        thread, text = match[1], match[2]
        if text.endswith(b"<unfinished ...>"):
            begun[thread] = text.removesuffix(b"<unfinished ...>").rstrip()
            continue
        if resumed := _RESUMED.fullmatch(text):
            text = begun.pop(thread) + resumed[1]
        if call := _CALL.match(text):
            yield thread, call[1].decode(), call[2], int(call[3])
