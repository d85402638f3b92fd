"""Notices that stop a run without a signal: a file, and a cloud's metadata server.

The loop polls for notices about once per second. After one, it finishes the step and saves the
state, and the process exits with code 75, as after SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Protocol

from dovetail.config import REQUIRED, Component, ConfigError

_LOG = logging.getLogger("dovetail")

_SECONDS_TO_ANSWER = 5.0
_FAILURES_BEFORE_WARNING = 3
_MAX_BYTES = 4096


class StopNotice(Protocol):
    """Tells whether a run must stop."""

    def poll(self, folder: Path) -> str | None:
        """Returns the reason to stop the run in a folder, or None. It must not block."""
        ...


class StopFile(Component):
    """A file named `stop` in the run folder, for schedulers that cannot send a signal."""

    def poll(self, folder: Path) -> str | None:
        """Removes the file if it is there, so that the next start trains again."""
        with contextlib.suppress(OSError):
            (folder / "stop").unlink()
            return f"the file {folder / 'stop'}"
        return None


class MetadataServer(Component):
    """A cloud's metadata server that announces preemptions at a URL. A thread polls it."""

    class Config(Component.Config["MetadataServer"]):
        """The URL, and the answers that are not a notice.

        Attributes:
            url: until the notice, it answers with another status than 200, or with a text in
                `quiet`.
            header: a header of the request, such as `Metadata-Flavor: Google`; None for none.
            quiet: answers that are not a notice.
            seconds: the time between two requests.
        """

        url: str = REQUIRED
        header: str | None = None
        quiet: tuple[str, ...] = ("", "FALSE", "NONE")
        seconds: float = 5.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: expected http:// or https://, got {config.url!r}.")
        if config.seconds <= 0:
            raise ConfigError(f"seconds: expected more than 0, got {config.seconds}.")
        name, colon, value = (config.header or "").partition(":")
        if config.header is not None and not (colon and name.strip()):
            raise ConfigError(f"header: expected 'Name: value', got {config.header!r}.")
        self._headers = {name.strip(): value.strip()} if config.header is not None else {}
        self._url, self._quiet, self._seconds = config.url, config.quiet, config.seconds
        self._notice: str | None = None
        self._thread: threading.Thread | None = None

    def poll(self, folder: Path) -> str | None:
        """Returns the notice, after the thread has received one."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="dovetail-metadata", daemon=True)
            self._thread.start()
        return self._notice

    def _ask(self) -> None:
        import urllib.error
        import urllib.request  # few runs need it

        request, failures = urllib.request.Request(self._url, headers=self._headers), 0
        while self._notice is None:
            try:
                with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER) as reply:
                    text = reply.read(_MAX_BYTES).decode(errors="replace").strip()
                failures = 0
                if text not in self._quiet:
                    self._notice = f"{self._url} ({text[:80]})"
            except urllib.error.HTTPError:  # as 404: nothing is scheduled
                failures = 0
            except Exception as error:  # noqa: BLE001  # a reply that is no HTTP, among others
                failures += 1
                if failures == _FAILURES_BEFORE_WARNING:
                    _LOG.warning(
                        "%s does not answer (%s), so a preemption is not noticed there. It is "
                        "asked again.",
                        self._url,
                        error,
                    )
            threading.Event().wait(self._seconds)
