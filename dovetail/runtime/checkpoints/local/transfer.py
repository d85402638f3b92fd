"""Transfers checkpoint files between the hosts of a run: copies to peers, and reads from them.

Each process runs a small TCP server for its own folder. A request is a line of JSON with the
token of the run; `put` sends a file, `get` reads a range of one. A received file is verified
before it gets its name, so damage in transit, or on the sender's disk, does not spread.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError
from dovetail.runtime.checkpoints.shards.reading import UnreachableError
from dovetail.utils import flush, make_folder

_NAME = re.compile(r"[0-9]{1,19}-[0-9]{1,9}/([0-9]{1,6}\.shards|manifest\.json)")
_CHUNK_BYTES = 2**20
_MAX_LINE_BYTES = 2**16

Verify = Callable[[Path], object]
"""Reads a file that has arrived, and raises a DamagedCheckpointError for a damaged one."""


class TransferError(UnreachableError):
    """A peer did not send or take a file."""


class FileServer:
    """Serves the checkpoints in a folder of this process to the others."""

    def __init__(self, folder: Path, host: str, token: str, verify: Verify) -> None:
        """Listens at an address of this host, on a port that the system chooses."""
        self._server = _Server(folder, host, token, verify)
        self.port: int = self._server.server_address[1]
        name = "dovetail-checkpoint-transfer"
        threading.Thread(target=self._server.serve_forever, name=name, daemon=True).start()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()


class Peer:
    """The file server of another process."""

    def __init__(self, index: int, address: tuple[str, int], token: str, seconds: float) -> None:
        """Takes the address; each call connects anew. Reads and writes time out after `seconds`."""
        self.index, self._address, self._token, self._seconds = index, address, token, seconds

    def put(self, file: Path, name: str) -> None:
        """Sends a file; returns once the peer has verified it and has it on its disk."""
        with self._connected() as connection, file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            self._send(connection, {"put": name, "size": size})
            connection.sendfile(stream)
            _check(self.index, _read_line(connection))

    def get(self, name: str, offset: int, length: int) -> bytes:
        """Returns a range of a file, which may be shorter at its end."""
        content = bytearray()
        with self._connected() as connection:
            self._send(connection, {"get": name, "offset": offset, "length": length})
            reply = _check(self.index, _read_line(connection))
            for block in _receive(connection, int(reply["size"])):
                content += block
        return bytes(content)

    def size(self, name: str) -> int:
        """Returns the number of bytes of a file."""
        with self._connected() as connection:
            self._send(connection, {"get": name, "offset": 0, "length": 0})
            return int(_check(self.index, _read_line(connection))["total"])

    @contextlib.contextmanager
    def _connected(self) -> Any:
        host, port = self._address
        try:
            with socket.create_connection(self._address, timeout=self._seconds) as connection:
                yield connection
        except (OSError, ValueError, KeyError) as error:
            raise TransferError(
                f"process {self.index} at {host}:{port} cannot be reached: {error}"
            ) from error

    def _send(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        connection.sendall((json.dumps({**message, "token": self._token}) + "\n").encode())


def _check(index: int, reply: dict[str, Any]) -> dict[str, Any]:
    if "problem" in reply:
        raise TransferError(f"process {index}: {reply['problem']}")
    return reply


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, folder: Path, host: str, token: str, verify: Verify) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.folder, self.token, self.verify = folder, token, verify


class _Handler(socketserver.BaseRequestHandler):
    """One request. A wrong token or a malformed message gets no answer."""

    server: _Server

    def handle(self) -> None:
        self.request.settimeout(60)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            message = _read_line(self.request)
            if not hmac.compare_digest(str(message.get("token")), self.server.token):
                return
            name = str(message.get("put", message.get("get")))
            if _NAME.fullmatch(name) is None:
                return
            if "put" in message:
                self._reply(self._take(self.server.folder / name, int(message["size"])))
            else:
                self._give(self.server.folder / name, message)

    def _take(self, file: Path, size: int) -> dict[str, Any]:
        """Stores a file that a peer sends, if it arrives undamaged."""
        temporary = file.with_name(f"{file.name}.part-{secrets.token_hex(6)}")
        try:
            make_folder(file.parent)
            with temporary.open("wb") as stream:
                for block in _receive(self.request, size):
                    stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
            self.server.verify(temporary)
            temporary.replace(file)
            flush(file.parent)
        except (OSError, ValueError, KeyError, DamagedCheckpointError) as error:
            return {"problem": f"the copy was not stored: {error}"}
        finally:
            temporary.unlink(missing_ok=True)
        return {}

    def _give(self, file: Path, message: Mapping[str, Any]) -> None:
        """Sends a range of a file."""
        try:
            with file.open("rb") as stream:
                total = os.fstat(stream.fileno()).st_size
                offset, length = int(message["offset"]), int(message["length"])
                size = max(min(length, total - offset), 0)
                self._reply({"size": size, "total": total})
                if size:  # to sendfile, 0 means all
                    self.request.sendfile(stream, offset, size)
        except FileNotFoundError as error:
            self._reply({"problem": str(error)})

    def _reply(self, message: Mapping[str, Any]) -> None:
        self.request.sendall((json.dumps(message) + "\n").encode())


def _receive(connection: socket.socket, size: int) -> Any:
    """Yields exactly `size` bytes, block by block."""
    while size > 0:
        block = connection.recv(min(size, _CHUNK_BYTES))
        if not block:
            raise ConnectionError("the connection was closed")
        size -= len(block)
        yield block


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """Reads one short line of JSON, byte by byte, because other data follows it."""
    received = bytearray()
    while not received.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the connection was closed")
        received += byte
        if len(received) > _MAX_LINE_BYTES:
            raise ValueError("a line that is too long")
    message = json.loads(received)
    if not isinstance(message, dict):
        raise ValueError("expected an object")
    return message
