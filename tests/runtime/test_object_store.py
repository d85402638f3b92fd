"""Checkpoints in an object store: a real S3 server of moto's, in a process of its own."""

import contextlib
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.runtime import Agreement, Checkpointer, ObjectStore, abstract_state, take_life
from dovetail.runtime.checkpoints.objects.bucket import Bucket, ObjectStoreError
from dovetail.runtime.lives import FencedError
from tests.cli.test_train_and_generate import TINY


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def s3_server(port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/moto-api/"):
                break
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a bucket. The library of S3 finds the server by its environment."""
    port = free_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with pytest.MonkeyPatch.context() as patch, s3_server(port):
        for name, value in settings.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("checkpoints")
        yield "s3://checkpoints"


@pytest.fixture
def url(s3: str, request: pytest.FixtureRequest) -> str:
    return f"{s3}/{abs(hash(request.node.name))}"


def state(step: int, mesh: tuple[int, int] = (4, 2)) -> dict[str, Any]:
    shape = jax.make_mesh(
        mesh, ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[: mesh[0] * mesh[1]]
    )
    generator = np.random.default_rng(step)

    def placed(value: Any, *axes: str | None) -> jax.Array:
        return jax.device_put(value, NamedSharding(shape, PartitionSpec(*axes)))

    return {
        "params": {
            "w": placed(generator.normal(size=(8, 12)).astype(np.float32), "data", "model"),
            "b": placed(generator.normal(size=5).astype(np.float32)),
        },
        "step": placed(np.int32(step)),
    }


def opened(run: Path, url: str, **values: Any) -> Checkpointer:
    store = ObjectStore.Config(url=url)
    checkpointer: Checkpointer = Checkpointer.Config(every=1, store=store, **values).build()
    checkpointer.open(run / "checkpoints")
    checkpointer.start(Agreement(), take_life(run / "lives"))
    return checkpointer


def saved(run: Path, url: str, *steps: int, **values: Any) -> Checkpointer:
    checkpointer = opened(run, url, **values)
    for step in steps:
        checkpointer.save(step, state(step))
    assert checkpointer.finish(), checkpointer.take_faults()
    return checkpointer


def restored(checkpointer: Checkpointer, mesh: tuple[int, int] = (4, 2)) -> int | None:
    """Returns the restored step, after a comparison of every number."""
    like = jax.eval_shape(lambda: state(0))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state(0, mesh))
    found = checkpointer.restore(abstract_state(like, shardings))
    if found is None:
        return None
    jax.tree.map(np.testing.assert_array_equal, found[1], state(found[0]))
    return found[0]


@pytest.mark.parametrize("mesh", [(4, 2), (2, 1), (1, 4)])
def test_what_was_saved_is_restored_on_any_mesh(url: str, tmp_path: Path, mesh: Any) -> None:
    saved(tmp_path / "run", url, 1, 2)
    assert restored(opened(tmp_path / "run", url), mesh) == 2
    in_run_folder = [file.name for file in (tmp_path / "run" / "checkpoints").iterdir()]
    assert in_run_folder == ["run-id"], "the checkpoints are in the store alone"


def test_the_newest_the_best_and_those_at_an_interval_are_kept(url: str, tmp_path: Path) -> None:
    checkpointer = opened(tmp_path / "run", url, keep=2, keep_every=4, keep_best="loss")
    for step in range(1, 9):
        checkpointer.evaluated(step, {"loss": abs(step - 3)})
        checkpointer.save(step, state(step))
    assert checkpointer.finish()
    assert checkpointer.steps() == [3, 4, 7, 8]
    assert {name.split("/")[0] for name in Bucket(url).names()} == {
        *("3-1", "4-1", "7-1", "8-1"),
        "run-id",
    }


def flip(bucket: Bucket, name: str, byte: int) -> None:
    content = bytearray(bucket.read(name))
    content[byte] ^= 1
    bucket.write(name, bytes(content))


@pytest.mark.parametrize("damage", ["data", "index", "manifest", "cut off", "gone"])
def test_damage_is_named_and_the_one_before_is_used(
    url: str, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "run", url, 1, 2, keep=5)
    bucket, shards = Bucket(url), "2-1/0.shards"
    if damage == "gone":
        bucket.remove([shards])
    elif damage == "cut off":
        bucket.write(shards, bucket.read(shards)[:-100])
    else:
        name, byte = {"data": (shards, 40), "index": (shards, -90)}.get(
            damage, ("2-1/manifest.json", 60)
        )
        flip(bucket, name, byte)
    checkpointer = opened(tmp_path / "run", url, keep=5)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert restored(checkpointer) == 1
    assert "The checkpoint of step 2 cannot be used" in caplog.text
    checkpointer.save(2, state(2))
    assert checkpointer.finish()
    assert "2-1/manifest.damaged" in bucket.names(), "the next save sets it aside"
    assert restored(opened(tmp_path / "run", url)) == 2


def test_a_save_that_was_interrupted_is_no_checkpoint_and_is_removed(
    url: str, tmp_path: Path
) -> None:
    saved(tmp_path / "run", url, 1)
    bucket = Bucket(url)
    bucket.write("2-1/0.shards", bucket.read("1-1/0.shards"))
    checkpointer = opened(tmp_path / "run", url)
    assert restored(checkpointer) == 1
    checkpointer.save(3, state(3))
    assert checkpointer.finish()
    assert not [name for name in bucket.names() if name.startswith("2-1")]


def test_an_older_life_cannot_commit(url: str, tmp_path: Path) -> None:
    old = saved(tmp_path / "run", url, 1)
    saved(tmp_path / "run", url, 2)
    with pytest.raises(FencedError):
        old.save(3, state(3))
    assert restored(opened(tmp_path / "run", url)) == 2


def test_suspect_checkpoints_are_not_used_again(url: str, tmp_path: Path) -> None:
    checkpointer = saved(tmp_path / "run", url, 1, 2, 3, keep=5)
    checkpointer.distrust(after=1)
    assert checkpointer.steps() == [1]
    assert "3-1/manifest.suspect" in Bucket(url).names()


def test_a_store_that_goes_away_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fsspec

    url = f"memory://{tmp_path.name}"
    checkpointer = saved(tmp_path / "run", url, 1)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "dovetail"):

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("503 Slow Down")

        patched.setattr(fsspec.get_filesystem_class("memory"), "_open", fail)
        checkpointer.save(2, state(2))
        assert not checkpointer.finish()
    assert "Saving step 2 failed" in caplog.text
    assert "503 Slow Down" in caplog.text
    checkpointer.save(3, state(3))
    assert checkpointer.finish()
    assert restored(opened(tmp_path / "run", url)) == 3


def test_a_store_that_cannot_even_be_listed_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fsspec

    checkpointer = saved(tmp_path / "run", f"memory://{tmp_path.name}", 1)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("503 Slow Down")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "dovetail"):
        for name in ("_open", "cat_file", "find", "ls", "pipe_file"):
            patched.setattr(fsspec.get_filesystem_class("memory"), name, fail)
        checkpointer.save(2, state(2))
        checkpointer.save_last(3, state(3))
        assert not checkpointer.finish()
    assert "cannot be listed now" in caplog.text
    checkpointer.save(4, state(4))
    assert checkpointer.finish()


def test_the_checkpoints_of_another_run_are_refused(url: str, tmp_path: Path) -> None:
    saved(tmp_path / "run", url, 1)
    with pytest.raises(ConfigError, match=r"holds the checkpoints of another run .*Choose another"):
        opened(tmp_path / "other", url)
    run_id = (tmp_path / "run" / "checkpoints" / "run-id").read_text()
    (tmp_path / "other" / "checkpoints" / "run-id").write_text(run_id)
    assert restored(opened(tmp_path / "other", url)) == 1, "as the message says"


def test_of_two_runs_that_claim_a_url_at_once_one_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked, and nobody was there."""
    saved(tmp_path / "run", url, 1)
    read, looks = Bucket.read, []

    def nothing_at_first(bucket: Bucket, name: str, *arguments: Any) -> bytes:
        looks.append(name)
        if len(looks) == 1:
            raise FileNotFoundError(name)
        return read(bucket, name, *arguments)

    monkeypatch.setattr(Bucket, "read", nothing_at_first)
    with pytest.raises(ConfigError, match=r"holds the checkpoints of another run"):
        opened(tmp_path / "other", url)
    assert restored(opened(tmp_path / "run", url)) == 1


def test_a_store_that_cannot_create_exclusively_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ObjectStoreError("501 NotImplemented: If-None-Match")

    monkeypatch.setattr(Bucket, "create", fail)
    saved(tmp_path / "run", f"memory://{tmp_path.name}", 1)
    assert restored(opened(tmp_path / "run", f"memory://{tmp_path.name}")) == 1
    with pytest.raises(ConfigError, match="holds the checkpoints of another run"):
        opened(tmp_path / "other", f"memory://{tmp_path.name}")


def test_a_store_that_is_out_of_reach_is_tried_again_by_a_later_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first life has a wrong URL, more likely; a later one meets an outage."""
    import fsspec

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("503 Slow Down")

    url = f"memory://{tmp_path.name}"
    memory = fsspec.get_filesystem_class("memory")
    with monkeypatch.context() as patched:
        patched.setattr(memory, "_open", fail)
        patched.setattr(memory, "cat_file", fail)
        with pytest.raises(ConfigError, match="503 Slow Down"):
            opened(tmp_path / "new", url)
    saved(tmp_path / "run", url, 1)
    with monkeypatch.context() as patched:
        patched.setattr(memory, "_open", fail)
        patched.setattr(memory, "cat_file", fail)
        with pytest.raises(ObjectStoreError, match="503 Slow Down"):
            opened(tmp_path / "run", url)
    assert restored(opened(tmp_path / "run", url)) == 1


def test_an_outage_in_a_restore_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    def fail(self: Any, path: str, *_: Any, **__: Any) -> Any:
        if path.endswith(".shards"):
            raise RuntimeError("503 Slow Down")
        return read(self, path, *_, **__)

    url = f"memory://{tmp_path.name}"
    saved(tmp_path / "run", url, 1, 2, keep=5)
    memory = fsspec.get_filesystem_class("memory")
    read = memory.cat_file
    checkpointer = opened(tmp_path / "run", url, keep=5)
    with monkeypatch.context() as patched:
        patched.setattr(memory, "cat_file", fail)
        with pytest.raises(ObjectStoreError, match="503 Slow Down"):
            restored(checkpointer)
    assert restored(saved(tmp_path / "run", url, 3, keep=5)) == 3
    assert not [name for name in Bucket(url).names() if name.endswith("damaged")]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("bucket/folder", "expected a URL, such as s3://bucket/folder"),
        ("nowhere://bucket", "Protocol not known"),
        ("gs://bucket/x", "needs a package that is not installed"),
    ],
)
def test_a_wrong_url_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ObjectStore.Config(url=url).build()


def test_a_bucket_that_is_not_there_is_one_sentence(s3: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s3://nobody-made-this/run .* Is the bucket there"):
        opened(tmp_path / "run", "s3://nobody-made-this/run")


def test_a_server_that_is_down_is_an_error_that_names_the_url(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(ObjectStoreError, match="s3://checkpoints/down cannot be used"):
            Bucket("s3://checkpoints/down").names()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_the_command_line_trains_continues_and_generates(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    store = ["checkpointer.store=ObjectStore", f"checkpointer.store.url={url}"]
    argv = ["train", "tiny-lm", *TINY, *store, "--run", folder]
    assert main([*argv, "--steps", "2"]) == 0
    assert main([*argv, "--steps", "3"]) == 0
    assert "resumed from step 2" in capsys.readouterr().err
    assert main(["generate", folder, "--tokens", "2", "--json"]) == 0
    assert [file.name for file in (tmp_path / "run" / "checkpoints").iterdir()] == ["run-id"]
