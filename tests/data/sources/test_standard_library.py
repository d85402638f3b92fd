import sysconfig

import pytest

from dovetail.config import ConfigError
from dovetail.data import StandardLibrary
from dovetail.data.interfaces import ShardedCorpus


def test_standard_library_has_the_sources_and_nothing_else():
    corpus = StandardLibrary.Config().build()
    found = {each.name: each.text for each in corpus.documents()}
    assert "import abc" in found["os.py"]
    assert "asyncio/events.py" in found
    assert len(found) > 300
    assert sum(map(len, found.values())) > 5_000_000
    parts = {part for name in found for part in name.split("/")[:-1]}
    assert not parts & {"site-packages", "test", "tests", "__pycache__", "idle_test"}
    assert list(found) == sorted(found)


def test_standard_library_fingerprint_depends_on_what_is_left_out():
    all_of_it = StandardLibrary.Config()
    less = StandardLibrary.Config(exclude=(*all_of_it.exclude, "asyncio"))
    assert all_of_it.build().fingerprint() == all_of_it.build().fingerprint()
    assert all_of_it.build().fingerprint() != less.build().fingerprint()


def test_a_python_without_sources_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no Python sources in .*none.*Files"):
        StandardLibrary.Config().build().fingerprint()


def test_a_library_file_that_is_not_utf8_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "old.py").write_bytes(b"# caf\xe9")
    (tmp_path / "new.py").write_bytes("# café".encode())
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert [each.name for each in StandardLibrary.Config().build().documents()] == ["new.py"]


def test_its_shards_are_its_files():
    corpus = StandardLibrary.Config().build()
    assert isinstance(corpus, ShardedCorpus)
    shards = corpus.shards()
    assert all(shard.size > 0 or shard.file.endswith("__init__.py") for shard in shards)
    read = [document for shard in shards for document in corpus.read(shard)]
    assert read == list(corpus.documents())
