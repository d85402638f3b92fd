"""The stored index: opened as it was built, built again if damaged, built by one process."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.data import BestFit, DropLong, IndexPlace, PadEach
from dovetail.data.packing import index as index_module
from dovetail.data.packing.index import open_index, read_index
from tests.data.packing.cases import (
    END,
    TOKEN_BYTES,
    all_rows,
    fields,
    lists_of_documents,
    split_of,
)

DOCUMENTS = [[1] * size for size in (3, 11, 1, 7, 5, 2, 9, 4, 6)]


@pytest.fixture
def place(tmp_path):
    return IndexPlace(tmp_path / "cache", "store-train", progress=False)


def indexes(place):
    return sorted(path.name for path in place.folder.iterdir() if path.name != "locks")


def pack(place, packing=None, length=8, documents=DOCUMENTS):
    return (packing or BestFit.Config()).build().pack(split_of(documents), length, place)


def same(left, right):
    assert left.statistics() == right.statistics()
    pairs = zip(
        *(fields(rows.batch(all_rows(left), END, TOKEN_BYTES)) for rows in (left, right)),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=lists_of_documents, length=st.integers(1, 9), each=st.booleans())
def test_an_opened_index_is_that_which_was_built(place, documents, length, each):
    packing = PadEach.Config() if each else BestFit.Config(long_documents=DropLong.Config())
    in_memory = packing.build().pack(split_of(documents), length)
    for _ in range(2):
        same(in_memory, pack(place, packing, length, documents))


def test_an_index_is_built_once(place, monkeypatch):
    first = pack(place)
    assert len(indexes(place)) == 1
    monkeypatch.setattr(BestFit, "arrange", None)
    same(first, pack(place))


@pytest.mark.parametrize(
    "change",
    [
        {"length": 9},
        {"packing": PadEach.Config()},
        {"packing": BestFit.Config(long_documents=DropLong.Config())},
        {"documents": DOCUMENTS[::-1]},
    ],
)
def test_what_an_index_depends_on_names_it(place, change):
    pack(place)
    pack(place, **change)
    assert len(indexes(place)) == 2


def test_a_new_version_of_the_code_builds_a_new_index(place, monkeypatch):
    pack(place)
    monkeypatch.setattr(BestFit, "version", BestFit.version + 1)
    pack(place)
    assert len(indexes(place)) == 2


def test_the_content_of_documents_does_not_matter(place):
    pack(place)
    pack(place, documents=[[2] * len(document) for document in DOCUMENTS])
    assert len(indexes(place)) == 1


def test_the_name_of_an_index(place):
    pack(place)
    assert indexes(place)[0].startswith("store-train-best-fit-8-")


def other_bytes(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-3])


def missing(path):
    path.unlink()


@pytest.mark.parametrize("damage", [other_bytes, cut_off, missing])
@pytest.mark.parametrize("name", ["starts.npy", "lengths.npy", "row_starts.npy", "meta.json"])
def test_a_damaged_index_is_rebuilt(place, name, damage):
    first = pack(place)
    before = fields(first.batch(all_rows(first), END, TOKEN_BYTES))
    file = place.folder / indexes(place)[0] / name
    content = file.read_bytes()
    damage(file)
    with pytest.warns(UserWarning, match="packing index is damaged and will be rebuilt: "):
        again = pack(place)
    assert file.read_bytes() == content
    for one, other in zip(
        before, fields(again.batch(all_rows(again), END, TOKEN_BYTES)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_an_index_of_another_format_is_rebuilt(place, monkeypatch):
    pack(place)
    folder = place.folder / indexes(place)[0]
    monkeypatch.setattr(index_module, "FORMAT", 2)
    with pytest.warns(UserWarning, match=r"expected format 2, got 1"):
        open_index(folder, lambda: BestFit.Config().build()._build(split_of(DOCUMENTS), 8), False)
    assert read_index(folder).statistics.documents == len(DOCUMENTS)


def test_an_error_while_building_leaves_nothing(place, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(BestFit, "arrange", fail)
    with pytest.raises(RuntimeError, match="no"):
        pack(place)
    assert indexes(place) == []


def test_threads_build_one_index(place, monkeypatch):
    """Threads lock each other out as processes do, because each opens the lock file."""
    built = []
    arrange = BestFit.arrange

    def slowly(*arguments):
        built.append(1)
        time.sleep(0.2)
        return arrange(*arguments)

    monkeypatch.setattr(BestFit, "arrange", slowly)
    results = []
    threads = [threading.Thread(target=lambda: results.append(pack(place))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    same(results[0], results[1])
    same(results[0], results[2])


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from dovetail.data import BestFit, IndexPlace
from dovetail.data.store import TokenSplit

starts = np.arange(0, 10**6, 10)
split = TokenSplit(np.zeros(10**6, np.uint16), starts)
rows = BestFit.Config().build().pack(split, 64, IndexPlace(Path(sys.argv[1]), "x", False))
print(rows.num_rows)
"""


def test_processes_build_one_index(place):
    command = [sys.executable, "-c", SCRIPT, str(place.folder)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert outputs == [("16667\n", "")] * 2
    assert len(indexes(place)) == 1
