"""Helpers without a domain: files, locks, formatting, progress, tables, HTML. Pure Python.

Importing this package is cheap: Rich, filelock and platformdirs are imported where they are used.
"""

from dovetail.utils.files import atomic_folder, atomic_write, remove_folder, user_cache_folder
from dovetail.utils.formatting import format_bytes, format_count, format_duration, plural
from dovetail.utils.host import can_compile_for, cpu_cores, cpu_model, host_memory_bytes
from dovetail.utils.locks import Lock, locked, try_lock
from dovetail.utils.progress import Progress
from dovetail.utils.tables import format_table

__all__ = [
    "Lock",
    "Progress",
    "atomic_folder",
    "atomic_write",
    "can_compile_for",
    "cpu_cores",
    "cpu_model",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_table",
    "host_memory_bytes",
    "locked",
    "plural",
    "remove_folder",
    "try_lock",
    "user_cache_folder",
]
