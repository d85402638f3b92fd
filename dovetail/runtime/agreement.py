"""Agreement: every process of a run sends a value, and receives the values of all, or a failure.

The processes agree on the checkpoint to restore, and on whether a save succeeded. Process 0 runs a
small TCP server. A call is one connection, with a line of JSON in each direction.

JAX's collectives do not fit. They wait for a missing process forever and do not name it. A
background thread must not run them beside the training step.

Invariants:
- A topic has one outcome for every process: all values, or the failure with the missing processes.
- The first deadline that passes decides for all. A later process receives the same outcome.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dovetail.config import Error
from dovetail.utils import format_duration

_MAX_BYTES = 64 * 2**20
_MAX_TOPICS = 1000
_SECONDS_BETWEEN_TRIES = 0.1


class AgreementError(Error, RuntimeError):
    """Not all processes of a run agreed in time."""


class Agreement:
    """The agreement of a run with a single process: its own value is the outcome."""

    index, count = 0, 1

    def gather(self, topic: str, value: Any, seconds: float) -> list[Any]:
        """Returns the values of all processes, in their order.

        Every process calls it once with the same topic, from any thread.

        Args:
            topic: a name, unique in the life of the run.
            value: anything that JSON can hold.
            seconds: how long to wait for the others.

        Raises:
            AgreementError: for a process that is missing at the deadline, or has withdrawn.
        """
        return [json.loads(json.dumps(value))]

    def withdraw(self, topics: str, reason: str) -> None:
        """Fails all topics with this prefix, so that no process waits for this one."""

    def withdrawn(self, topics: str) -> str | None:
        """Returns why a process has withdrawn from these topics; None if none has."""
        return None

    def own_address(self) -> str:
        """Returns the address at which the other processes reach this one."""
        return "127.0.0.1"

    def close(self) -> None:
        """Stops the server."""


class ProcessAgreement(Agreement):
    """The agreement of several processes, through the server of process 0."""

    def __init__(self, index: int, count: int, address: tuple[str, int], token: str) -> None:
        """Takes the server's address and token; each call connects anew."""
        self.index, self.count = index, count
        self._address, self._token = address, token
        self._server: _AgreementServer | None = None

    def gather(self, topic: str, value: Any, seconds: float) -> list[Any]:
        """Sends the value to the server, and waits for all."""
        outcome = self._ask({"topic": topic, "value": value, "seconds": seconds}, topic, seconds)
        if "values" not in outcome:
            raise AgreementError(f"{topic}: {outcome['failure']}")
        values: list[Any] = outcome["values"]
        return values

    def withdraw(self, topics: str, reason: str) -> None:
        """Tells the server. If that fails, the others wait until their deadline."""
        with contextlib.suppress(AgreementError):
            self._ask({"topic": topics, "withdraws": reason}, topics, 5.0)

    def withdrawn(self, topics: str) -> str | None:
        """Asks the server; one that does not answer is noticed elsewhere."""
        with contextlib.suppress(AgreementError):
            reason: str | None = self._ask({"topic": topics, "asks": True}, topics, 5.0)["reason"]
            return reason
        return None

    def own_address(self) -> str:
        """Asks the system for its address on the route to process 0; sends nothing."""
        family, kind, _, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])

    def close(self) -> None:
        """Stops the server, which only process 0 has."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def serve(self, server: _AgreementServer) -> None:
        """Runs the server in a thread of this process."""
        self._server = server
        thread = threading.Thread(target=server.serve_forever, name="dovetail-agreement")
        thread.daemon = True
        thread.start()

    def _ask(self, message: Mapping[str, Any], topic: str, seconds: float) -> dict[str, Any]:
        """Sends one line and returns the reply; retries the connection until the deadline."""
        line = json.dumps({**message, "index": self.index, "token": self._token}) + "\n"
        deadline = time.monotonic() + seconds
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.1)
                with socket.create_connection(self._address, timeout=left) as connection:
                    # The server decides about the deadline; this limit is for a dead server.
                    connection.settimeout(seconds + 10)
                    connection.sendall(line.encode())
                    return _read_line(connection)
            except (OSError, ValueError) as error:
                if time.monotonic() >= deadline:
                    host, port = self._address
                    raise AgreementError(
                        f"{topic}: process 0 at {host}:{port} does not answer ({error}). Did it "
                        "end, or does a firewall close the port?"
                    ) from error
            time.sleep(_SECONDS_BETWEEN_TRIES)


def open_agreement() -> Agreement:
    """Returns the agreement of this run's processes. Every process must call this."""
    count = jax.process_count()
    if count == 1:
        return Agreement()
    from jax.experimental.multihost_utils import broadcast_one_to_all

    server = _AgreementServer(count, secrets.token_hex(8)) if jax.process_index() == 0 else None
    host, _, _ = os.environ.get("DOVETAIL_COORDINATOR", "").rpartition(":")
    about: dict[str, Any] = {"host": host or socket.gethostname()}
    if server is not None:
        about |= {"port": server.server_address[1], "token": server.token}
    about = _broadcast(about, broadcast_one_to_all)
    address = (about["host"].strip("[]"), about["port"])
    here = ProcessAgreement(jax.process_index(), count, address, about["token"])
    if server is not None:
        here.serve(server)
    return here


@contextlib.contextmanager
def leave_together(topic: str, seconds: float) -> Iterator[None]:
    """Lets no process of the run leave the block before all have come to its end.

    A collective may give up after half a minute if a peer has not come (Gloo), so this is for work
    that takes some processes longer, such as preparing data on their own disks. If one fails, the
    others raise an AgreementError that says why.
    """
    agreement = open_agreement()
    try:
        try:
            yield
        except BaseException as error:
            agreement.withdraw(topic, f"{type(error).__name__}: {error}")
            raise
        agreement.gather(topic, None, seconds)
    finally:
        agreement.close()


def _broadcast(about: dict[str, Any], broadcast: Any) -> dict[str, Any]:
    """Broadcasts a small object of process 0, as a fixed number of bytes."""
    encoded = json.dumps(about).encode().ljust(512)
    received = np.asarray(broadcast(np.frombuffer(encoded, np.uint8)))
    result: dict[str, Any] = json.loads(received.tobytes())
    return result


@dataclass
class _Topic:
    """The values and the outcome of one topic."""

    values: dict[int, Any] = field(default_factory=dict)
    failure: str | None = None
    waiting: int = 0
    """How many calls wait for its outcome."""


class _AgreementServer(socketserver.ThreadingTCPServer):
    """Collects values by topic; each connection is one thread."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, count: int, token: str, host: str = "") -> None:
        super().__init__((host, 0), _AgreementHandler)
        self.count, self.token = count, token
        self._topics: dict[str, _Topic] = {}
        self._withdrawn: dict[str, str] = {}
        self._changed = threading.Condition()

    def answer(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outcome of a topic, once it has one."""
        name, deadline = str(message["topic"]), time.monotonic() + float(message["seconds"])
        with self._changed:
            topic = self._topics.setdefault(name, _Topic())
            if topic.values.setdefault(index, message["value"]) != message["value"]:
                return {"failure": f"process {index} has given another answer before"}
            if len(topic.values) < self.count:
                for prefix, reason in self._withdrawn.items():
                    if name.startswith(prefix):
                        topic.failure = topic.failure or reason
            self._changed.notify_all()
            topic.waiting += 1
            while len(topic.values) < self.count and topic.failure is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    topic.failure = self._missing(topic, float(message["seconds"]))
                    self._changed.notify_all()
            topic.waiting -= 1
            self._forget_old()
            if topic.failure is not None:
                return {"failure": topic.failure}
            return {"values": [topic.values[i] for i in range(self.count)]}

    def withdraw(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Ends all topics with a prefix, now and later."""
        reason = f"process {index} cannot go on: {message['withdraws']}"
        with self._changed:
            self._withdrawn[str(message["topic"])] = reason
            for name, topic in self._topics.items():
                if name.startswith(str(message["topic"])) and len(topic.values) < self.count:
                    topic.failure = topic.failure or reason
            self._changed.notify_all()
        return {}

    def withdrawn(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns whether a process has withdrawn."""
        with self._changed:
            return {"reason": self._withdrawn.get(str(message["topic"]))}

    def _missing(self, topic: _Topic, seconds: float) -> str:
        missing = [index for index in range(self.count) if index not in topic.values]
        return (
            f"{_processes(missing)} did not answer within {format_duration(seconds)}, but "
            f"{_processes(sorted(topic.values))} did."
        )

    def _forget_old(self) -> None:
        """Bounds the memory: drops the oldest topics that no call waits for."""
        excess = len(self._topics) - _MAX_TOPICS
        answered = (name for name, topic in self._topics.items() if not topic.waiting)
        for name in list(itertools.islice(answered, max(excess, 0))):
            del self._topics[name]


class _AgreementHandler(socketserver.BaseRequestHandler):
    """One call of one process."""

    server: _AgreementServer

    def handle(self) -> None:
        """Answers one line. A wrong token or a malformed message gets no answer."""
        self.request.settimeout(30)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            message = _read_line(self.request)
            if not hmac.compare_digest(str(message.get("token")), self.server.token):
                return
            index = int(message["index"])
            reply = self.server.answer
            if "withdraws" in message:
                reply = self.server.withdraw
            elif "asks" in message:
                reply = self.server.withdrawn
            self.request.sendall((json.dumps(reply(index, message)) + "\n").encode())


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """Reads one line of JSON, of a bounded length."""
    received = bytearray()
    while not received.endswith(b"\n"):
        block = connection.recv(65536)
        if not block:
            raise ConnectionError("the connection was closed")
        received += block
        if len(received) > _MAX_BYTES:
            raise ValueError(f"a message of more than {_MAX_BYTES} bytes")
    message = json.loads(received)
    if not isinstance(message, dict):
        raise ValueError("expected an object")
    return message


def _processes(indices: Sequence[int]) -> str:
    names = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return f"process{'es' if len(indices) > 1 else ''} {names}"
