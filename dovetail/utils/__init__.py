"""Helpers without a domain: files, locks, formatting, progress, tables, HTML. Pure Python.

Importing this package is cheap: Rich, filelock and platformdirs are imported where they are used.
"""

from dovetail.utils.background import BackgroundCall, set_exit_code, skip_exit_handlers
from dovetail.utils.files import (
    TEMPORARY,
    atomic_folder,
    atomic_write,
    file_digest,
    file_digests,
    flush,
    flush_tree,
    make_folder,
    read_json_lines,
    remove_folder,
    user_cache_folder,
)
from dovetail.utils.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    plural,
)
from dovetail.utils.host import (
    can_compile_for,
    cpu_cores,
    cpu_model,
    host_memory_bytes,
    launched_index,
    process_started,
)
from dovetail.utils.locks import Lock, locked, try_lock
from dovetail.utils.progress import Progress
from dovetail.utils.tables import format_table

__all__ = [
    "TEMPORARY",
    "BackgroundCall",
    "Lock",
    "Progress",
    "atomic_folder",
    "atomic_write",
    "can_compile_for",
    "cpu_cores",
    "cpu_model",
    "file_digest",
    "file_digests",
    "flush",
    "flush_tree",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_number",
    "format_table",
    "host_memory_bytes",
    "launched_index",
    "locked",
    "make_folder",
    "plural",
    "process_started",
    "read_json_lines",
    "remove_folder",
    "set_exit_code",
    "skip_exit_handlers",
    "try_lock",
    "user_cache_folder",
]
