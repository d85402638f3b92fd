"""Agreement among processes: all values or one reason, the same for all, in time."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dovetail.runtime.agreement import Agreement, AgreementError, ProcessAgreement, _AgreementServer


@pytest.fixture
def processes() -> Iterator[list[ProcessAgreement]]:
    """Three processes of a run; each is used by a thread of its own."""
    server = _AgreementServer(3, "secret", "127.0.0.1")
    address = ("127.0.0.1", server.server_address[1])
    all_processes = [ProcessAgreement(index, 3, address, "secret") for index in range(3)]
    all_processes[0].serve(server)
    yield all_processes
    all_processes[0].close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Runs calls in threads, and returns their results or errors."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except AgreementError as error:
            return str(error)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def test_one_process_agrees_with_itself() -> None:
    assert Agreement().gather("restore", {"steps": (1, 2)}, 1) == [{"steps": [1, 2]}]


def test_all_get_the_values_of_all_in_order(processes: list[ProcessAgreement]) -> None:
    results = at_once(*(lambda p=p: p.gather("vote", p.index * 10, 20) for p in processes))
    assert results == [[0, 10, 20]] * 3


def test_topics_do_not_wait_for_each_other(processes: list[ProcessAgreement]) -> None:
    def ask(process: ProcessAgreement, topic: str) -> Any:
        return process.gather(topic, f"{topic}{process.index}", 20)

    pairs = [(process, topic) for process in processes for topic in "ab"]
    results = at_once(*(lambda pair=pair: ask(*pair) for pair in pairs))
    assert results == [[f"{topic}{index}" for index in range(3)] for _, topic in pairs]


def test_a_missing_process_is_named_to_all_and_to_itself(processes: list[ProcessAgreement]) -> None:
    first = at_once(*(lambda p=p: p.gather("vote", True, 0.3) for p in processes[::2]))
    expected = "vote: process 1 did not answer within 0.3 s, but processes 0, 2 did."
    assert first == [expected] * 2
    started = time.monotonic()
    assert at_once(lambda: processes[1].gather("vote", True, 20)) == [expected]
    assert time.monotonic() - started < 10, "the outcome was known, so nobody waits"


def test_a_process_that_withdraws_ends_the_wait(processes: list[ProcessAgreement]) -> None:
    waiting = threading.Timer(0.2, processes[2].withdraw, ["save 7/", "the disk is full"])
    waiting.start()
    results = at_once(*(lambda p=p: p.gather("save 7/written", True, 30) for p in processes[:2]))
    assert results == ["save 7/written: process 2 cannot go on: the disk is full"] * 2
    later = at_once(lambda: processes[0].gather("save 7/committed", True, 30))
    assert later == ["save 7/committed: process 2 cannot go on: the disk is full"]
    others = at_once(*(lambda p=p: p.gather("save 8/written", True, 30) for p in processes))
    assert others == [[True] * 3] * 3


def test_a_server_that_is_gone_is_named(processes: list[ProcessAgreement]) -> None:
    processes[0].close()
    with pytest.raises(AgreementError, match=r"vote: process 0 at 127.0.0.1:\d+ does not answer"):
        processes[1].gather("vote", True, 0.3)


def test_strangers_get_nothing_and_disturb_nobody(processes: list[ProcessAgreement]) -> None:
    address = processes[1]._address
    bad = {"token": "wrong", "index": 0, "topic": "vote", "value": 66, "seconds": 5}
    for line in (json.dumps(bad).encode() + b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\n"):
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(100) == b""
    results = at_once(*(lambda p=p: p.gather("vote", p.index, 20) for p in processes))
    assert results == [[0, 1, 2]] * 3


def test_another_answer_to_the_same_question_is_refused() -> None:
    """A topic that is used twice would get the answers of the first time."""
    server = _AgreementServer(2, "token")

    def ask(index: int, value: float) -> dict[str, Any]:
        return server.answer(index, {"topic": "t", "value": value, "seconds": 5})

    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, 0, 1.0)
        assert ask(1, 2.0) == first.result() == {"values": [1.0, 2.0]}
    assert ask(1, 2.0) == {"values": [1.0, 2.0]}, "a call that was sent again"
    assert "has given another answer" in ask(1, 3.0)["failure"]
    server.withdraw(0, {"topic": "t", "withdraws": "later"})
    assert ask(1, 2.0) == {"values": [1.0, 2.0]}, "it was answered before"
    server.server_close()


def test_a_question_that_somebody_waits_for_is_not_forgotten() -> None:
    server = _AgreementServer(2, "token")
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(server.answer, 0, {"topic": "slow", "value": 1, "seconds": 60})
        for number in range(1100):
            for index in (0, 1):
                topic = {"topic": f"quick {number}", "value": index, "seconds": 60}
                if index == 0:
                    waiting = pool.submit(server.answer, index, topic)
                else:
                    server.answer(index, topic)
            waiting.result()
        assert len(server._topics) <= 1001
        assert server.answer(1, {"topic": "slow", "value": 2, "seconds": 5}) == {"values": [1, 2]}
        assert pending.result() == {"values": [1, 2]}
    server.server_close()
