"""Fingerprints of files: a hash of their names and contents, cached for large corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dovetail.data.sources.source_file import SourceFile
from dovetail.data.store import data_folder, write_file

# Up to this size a corpus is hashed every time, in a fraction of a second. The hash of a larger one
# is cached until the size or modification time of a file changes.
_ALWAYS_HASHED_BYTES = 256 * 2**20


def fingerprint_files(files: Sequence[SourceFile]) -> str:
    """Returns a hash of all names and contents; of files behind URLs, see `RemoteFile.digest`."""
    local = [file for file in files if file.local_path is not None]
    if sum(file.size() for file in local) <= _ALWAYS_HASHED_BYTES:
        return _hash_contents(files)
    state = hashlib.blake2b(digest_size=16)
    for file in files:
        state.update(file.state().encode("utf-8", "surrogateescape"))
    cached = data_folder() / "fingerprints" / state.hexdigest()
    try:
        return cached.read_text()
    except FileNotFoundError:
        result = _hash_contents(files)
        write_file(cached, result)
        return result


def _hash_contents(files: Sequence[SourceFile]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        # Digests have one length and names no zero byte, so the concatenation is unambiguous.
        total.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + file.digest())
    return total.hexdigest()
