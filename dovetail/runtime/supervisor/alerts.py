"""Alerts about a run, sent to a command or a URL."""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.request

_SECONDS = 20


def alert(target: str, message: str, folder: str) -> str | None:
    """Sends a message to a command or a URL; returns the problem, or None.

    A URL gets a POST of JSON. A command gets the message as its last argument.
    """
    try:
        if target.startswith(("http://", "https://")):
            body = json.dumps({"text": message, "run": folder}).encode()
            request = urllib.request.Request(  # the user's own URL, of these schemes
                target, body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=_SECONDS):
                return None
        command = [*shlex.split(target), message]
        done = subprocess.run(command, timeout=_SECONDS, check=False, capture_output=True)
    except Exception as error:  # noqa: BLE001  # an alert never stops anything
        return str(error) or type(error).__name__
    return None if done.returncode == 0 else f"{target} exited with code {done.returncode}"
