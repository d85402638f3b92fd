"""The channel on which workers send heartbeats to the supervisor."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MAX_LINE = 65536


@dataclass
class HeartbeatRecord:
    """The last heartbeat of a worker, and when it arrived."""

    received: float
    """When its last message arrived (monotonic)."""
    progressed: float
    """When its step or phase changed."""
    phase: str = "start"
    step: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Channel:
    """Listens on the loopback interface, and keeps the last heartbeat of each worker."""

    def __init__(self) -> None:
        """Opens a port, and listens in a thread."""
        self._token = secrets.token_hex(8)
        self._heartbeats: dict[int, HeartbeatRecord] = {}
        self._lock = threading.Lock()
        self._num_connections = 0
        self._disconnected = threading.Condition(self._lock)
        self._server = _ChannelServer(("127.0.0.1", 0), _ChannelHandler)
        self._server.channel = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host, port and token, for the environment of the workers."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}:{self._token}"

    def reset(self, count: int) -> None:
        """Discards all heartbeats, for a new life with this number of workers."""
        now = time.monotonic()
        with self._lock:
            self._heartbeats = {index: HeartbeatRecord(now, now) for index in range(count)}

    def heartbeats(self) -> dict[int, HeartbeatRecord]:
        """Returns the last heartbeat of each worker."""
        with self._lock:
            return dict(self._heartbeats)

    @contextlib.contextmanager
    def connection(self) -> Iterator[None]:
        """Counts a connection while it is open."""
        with self._lock:
            self._num_connections += 1
        try:
            yield
        finally:
            with self._disconnected:
                self._num_connections -= 1
                self._disconnected.notify_all()

    def wait_until_read(self, seconds: float) -> None:
        """Waits until the last messages of workers that have ended are read."""
        with self._disconnected:
            self._disconnected.wait_for(lambda: not self._num_connections, seconds)

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()

    def is_known(self, token: str) -> bool:
        """Says whether a connection comes from a worker."""
        return hmac.compare_digest(token, self._token)

    def receive(self, message: dict[str, Any]) -> None:
        """Records a heartbeat."""
        now, index = time.monotonic(), int(message["index"])
        phase, step = str(message["phase"]), message.get("step")
        with self._lock:
            before = self._heartbeats.get(index)
            if before is None:
                return
            is_same = (before.phase, before.step) == (phase, step)
            progressed = before.progressed if is_same else now
            self._heartbeats[index] = HeartbeatRecord(now, progressed, phase, step, message)


class _ChannelServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    channel: Channel


class _ChannelHandler(socketserver.StreamRequestHandler):
    server: _ChannelServer

    def handle(self) -> None:
        """Reads the token, then messages until the end. Malformed data ends the connection."""
        channel, errors = self.server.channel, (OSError, ValueError, KeyError, TypeError)
        with contextlib.suppress(*errors), channel.connection():
            token = self.rfile.readline(_MAX_LINE).decode().strip()
            while channel.is_known(token):
                line = self.rfile.readline(_MAX_LINE)
                if not line:
                    return
                channel.receive(json.loads(line))
