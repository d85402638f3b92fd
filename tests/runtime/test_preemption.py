"""Notices to stop: a file, and a real HTTP server that behaves as those of clouds do."""

import http.server
import logging
import threading
import time

import pytest

from dovetail.config import ConfigError
from dovetail.runtime import MetadataServer, StopFile, StopRequest
from dovetail.runtime.signals import _SECONDS_BETWEEN_POLLS


@pytest.fixture
def cloud():
    """A metadata server; `cloud.answer` is (status, text), and it keeps what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.headers_seen.append(self.headers.get("Metadata-Flavor"))
            status, text = server.answer
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answer, server.headers_seen = (200, "FALSE"), []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/preempted"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def heard(notice, folder, seconds=10.0):
    """Returns the notice, once it has come."""
    deadline = time.monotonic() + seconds
    while (found := notice.poll(folder)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("quiet", [(200, "FALSE"), (200, "NONE\n"), (404, "not found")])
def test_a_metadata_server_is_asked_until_it_tells(cloud, tmp_path, quiet):
    cloud.answer = quiet
    notice = MetadataServer.Config(
        url=cloud.url, header="Metadata-Flavor: Google", seconds=0.02
    ).build()
    assert notice.poll(tmp_path) is None
    while len(cloud.headers_seen) < 3:
        time.sleep(0.02)
    assert notice.poll(tmp_path) is None
    assert set(cloud.headers_seen) == {"Google"}
    cloud.answer = (200, "TRUE")
    assert heard(notice, tmp_path) == f"{cloud.url} (TRUE)"


def test_a_server_that_does_not_answer_is_said_once(tmp_path, caplog):
    url = "http://127.0.0.1:9/preempted"
    notice = MetadataServer.Config(url=url, seconds=0.01).build()
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert heard(notice, tmp_path, seconds=0.5) is None
    assert [f"{url} does not answer" in message for message in caplog.messages] == [True]
    notice._notice = "ends the thread"


def test_a_request_to_stop_looks_for_every_notice_once_in_a_second(tmp_path, monkeypatch):
    stop, notices = StopRequest(), [StopFile.Config().build()]
    stop.poll(tmp_path, notices)
    (tmp_path / "stop").touch()
    stop.poll(tmp_path, notices)
    assert stop.received is None, "not again so soon"
    stop._last_poll -= _SECONDS_BETWEEN_POLLS
    stop.poll(tmp_path, notices)
    assert stop.received == f"the file {tmp_path / 'stop'}"
    assert not (tmp_path / "stop").exists(), "so that the next start trains"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "file:///etc/passwd"}, "expected http:// or https://"),
        ({"url": "http://x", "seconds": 0.0}, "expected more than 0"),
        ({"url": "http://x", "header": "Google"}, "expected 'Name: value'"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        MetadataServer.Config(**values).build()
