"""The tables of the peers are made from archives of both kinds, and put into the page."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import scan_peers

CODE = "class Rope: ...\n"


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "megatron_core-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("megatron/rope.py", CODE)
        wheel.writestr("megatron/model.py", "from megatron.rope import Rope\nx = Rope()\n")
    with tarfile.open(tmp_path / "deepspeed-0.1.tar.gz", "w:gz") as source:
        member = tarfile.TarInfo("deepspeed-0.1/deepspeed/rope.py")
        member.size = len(CODE)
        source.addfile(member, io.BytesIO(CODE.encode()))
    return tmp_path


def test_every_archive_has_its_row_beside_ours(archives, monkeypatch, tmp_path):
    small = tmp_path / "root"
    (small / "dovetail").mkdir(parents=True)
    (small / "dovetail" / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(scan_peers, "ROOT", small)
    monkeypatch.setattr(scan_peers, "_our_version", lambda: "abc")
    (small / "archives").mkdir()
    for archive in [*archives.glob("*.whl"), *archives.glob("*.gz")]:
        archive.rename(small / "archives" / archive.name)
    reports = scan_peers.scan_all(small / "archives")
    named = [(name, version, report.num_files) for name, version, report in reports]
    assert named == [
        ("**Dovetail**", "abc", 1),
        ("deepspeed", "0.1", 1),
        ("megatron-core", "1.2", 2),
    ]
    lines = list(scan_peers.all_tables(reports))
    rows = [line for line in lines if line.startswith("| megatron-core")]
    assert len(rows) == 4, "code bases, rope, moe and the matrix"
    assert rows[1].startswith("| megatron-core | 2 | 100% | 1 | 1 |")
    tables = [line.count("|") for line in lines if line.startswith("|")]
    assert len(set(tables)) <= 4, "every row has as many cells as its head"


def test_nothing_is_written_outside_of_the_folder(tmp_path):
    archive = tmp_path / "bad-0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as source:
        member = tarfile.TarInfo("../outside.py")
        member.size = len(CODE)
        source.addfile(member, io.BytesIO(CODE.encode()))
    with pytest.raises(SystemExit, match="outside"):
        scan_peers._unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "outside.py").exists()


def test_the_tables_are_put_between_the_marks():
    page = f"before\n{scan_peers.BEGIN}\nold\n{scan_peers.END}\nafter\n"
    put = scan_peers.put_between(page, "new")
    assert put == f"before\n{scan_peers.BEGIN}\nnew\n{scan_peers.END}\nafter\n"
    with pytest.raises(SystemExit, match="needs the markers"):
        scan_peers.put_between("no marks", "new")
