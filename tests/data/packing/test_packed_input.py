"""TokenInput with every packing: the same data on any hosts, at any step, in older runs."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.data import BestFit, DropLong, PadEach, data_folder, prepare
from dovetail.runtime import RunFolder, short_hash
from tests.data.packing.cases import PACKINGS

every_packing = pytest.mark.parametrize("name", PACKINGS)


@pytest.fixture
def packed_input(small_input, name):
    # The held-out document has 192 tokens, so that nothing drops it.
    return small_input.set(packing=PACKINGS[name], sequence_length=192, batch_size=2)


def same(left, right):
    return jax.tree.all(jax.tree.map(np.array_equal, left, right))


@every_packing
def test_hosts_together_make_the_same_batch_at_any_step(packed_input):
    whole = packed_input.build()
    batches = [whole.batch(step) for step in range(9)]
    for step in (8, 2, 5):
        halves = [packed_input.build().batch(step, slice(row, row + 1)) for row in (0, 1)]
        assert same(jax.tree.map(lambda *rows: np.concatenate(rows), *halves), batches[step])


@every_packing
def test_batches_are_as_the_spec_promises(packed_input):
    source = packed_input.build()
    for batch in (source.batch(0), source.held_out().batch(0)):
        found = jax.tree.map(lambda array: (array.shape, array.dtype.name), batch)
        assert found == jax.tree.map(lambda spec: (spec.shape, spec.dtype), source.spec())


@every_packing
def test_the_documents_of_a_step_are_those_of_its_batch(packed_input):
    source = packed_input.build()
    for step in range(4):
        batch = source.batch(step)
        for row, pieces in enumerate(source.documents(step)):
            last_of_row = pieces[-1].position + pieces[-1].length
            assert np.count_nonzero(batch.segment_ids[row]) == last_of_row
            assert batch.segment_ids[row].max() == len(pieces)
        assert source.documents(step, slice(1, 2)) == source.documents(step)[1:]


@every_packing
def test_statistics_of_the_splits(packed_input):
    source = packed_input.build()
    for split, summary in source.prepare().splits.items():
        statistics = source.packing_statistics(split)
        assert statistics.documents == summary.documents
        assert 0 < statistics.fill_rate <= 1
        assert statistics.tokens + statistics.tokens_dropped in (summary.tokens, summary.tokens - 1)


def test_preparing_builds_the_index_of_the_split(small_input):
    small_input.set(packing=BestFit.Config())
    folder = prepare(small_input, progress=False).folder
    names = [path.name for path in data_folder().iterdir() if "best-fit" in path.name]
    assert len(names) == 1
    assert names[0].startswith(f"{folder.name}-train-best-fit-16-")
    small_input.build().batch(0)
    small_input.build().held_out().batch(0)
    assert sum("held_out-best-fit" in path.name for path in data_folder().iterdir()) == 1


def test_a_store_of_a_run_has_its_index_in_the_cache(small_input, tmp_path):
    source = small_input.set(packing=PadEach.Config()).build()
    kept = tmp_path / "run" / "data" / "kept"
    kept.parent.mkdir(parents=True)
    source.prepare().folder.rename(kept)
    resumed = small_input.build()
    resumed.use_prepared(kept)
    assert same(resumed.batch(3), source.batch(3))
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]


def test_a_packing_that_drops_everything_is_an_error(small_input):
    small_input.set(packing=BestFit.Config(long_documents=DropLong.Config()), sequence_length=1)
    with pytest.raises(ConfigError, match=r"no row of its train split. [0-9]+ documents are dr"):
        small_input.build().batch(0)


def test_a_run_of_before_packings_continues(small_input, tmp_path):
    """Its texts have no packing, which means the default one."""
    assert not any(line.startswith("packing") for line in to_text(small_input).splitlines())
    RunFolder(tmp_path).describe(small_input, {})
    RunFolder(tmp_path).check_identity(small_input.clone())
    packed = small_input.clone(packing=BestFit.Config())
    assert from_text(to_text(packed)) == packed
    assert short_hash(packed) != short_hash(small_input)
    with pytest.raises(ConfigError, match=r"packing: .*ConcatenateAndSplit.* -> .*BestFit"):
        RunFolder(tmp_path).check_identity(packed)


def test_epochs_are_counted_in_rows(small_input):
    """Padding is no data: a step of padded rows takes fewer tokens."""
    source = small_input.set(packing=PadEach.Config(), sequence_length=2048, batch_size=1).build()
    rows = source.packing_statistics().rows
    assert source.warnings(rows) == []
    assert f"{rows * 60:,} steps are 60 epochs" in source.warnings(60 * rows)[0]
