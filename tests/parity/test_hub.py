"""The Hub through its own library, with a server on this machine that answers as the Hub does."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.models import families
from tests.parity.reference import write_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves one model: what it is, the list of its files, and the files."""

    folder: Path
    served: list[str]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:  # the base's name
        """Stays quiet."""

    def _answer(self, with_body: bool) -> None:
        path, name = self.path.partition("?")[0], self.path.rpartition("/")[2]
        if path.startswith(f"/api/models/{NAME}/tree/"):
            files = sorted(self.folder.iterdir())
            found = json.dumps([self._entry(file) for file in files]).encode()
        elif path.startswith(f"/api/models/{NAME}"):
            siblings = [{"rfilename": file.name} for file in self.folder.iterdir()]
            found = json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode()
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            found = (self.folder / name).read_bytes()
            self.served.append(name)
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(found)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(found).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(found)

    def _entry(self, file: Path) -> dict[str, object]:
        oid = hashlib.sha1(file.read_bytes()).hexdigest()
        return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": oid}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """Serves a tiny Llama, with a file of code beside it; yields the address."""
    Hub.folder, Hub.served = tmp_path / "served", []
    write_model(families()["llama"], str(Hub.folder))
    (Hub.folder / "modeling.py").write_text("raise SystemExit('code of a checkpoint was run')")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def imported(hub: str, folder: Path, name: str, run: str) -> subprocess.CompletedProcess[str]:
    """Imports in a process of its own: the library reads its address when it is loaded."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(folder / "home")}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    dovetail = str(Path(sys.executable).parent / "dovetail")
    command = [dovetail, "import", "hf", name, "--to", str(folder / run)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_model_comes_from_the_hub_without_its_code(hub: str, tmp_path: Path) -> None:
    remote = imported(hub, tmp_path, f"hub:{NAME}", "remote")
    assert remote.returncode == 0, remote.stderr
    assert "model.safetensors" in Hub.served
    assert "modeling.py" not in Hub.served
    local = imported(hub, tmp_path, str(Hub.folder), "local")
    assert local.returncode == 0, local.stderr
    ours, theirs = (
        (tmp_path / run / "weights" / "00001.safetensors").read_bytes()
        for run in ("remote", "local")
    )
    assert ours == theirs


def test_a_name_that_the_hub_lacks_is_refused(hub: str, tmp_path: Path) -> None:
    refused = imported(hub, tmp_path, "hub:org/other", "run")
    assert refused.returncode == 2
    assert "hub:org/other cannot be fetched" in refused.stderr
    assert not (tmp_path / "run").exists()
