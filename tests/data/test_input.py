import jax
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import BytePairTokenizer, EvaluationInput, Input, Prefetcher, TokenInput
from dovetail.data.store import data_folder
from dovetail.module import ArraySpec, TokenBatch


def same(left: TokenBatch, right: TokenBatch) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, left, right))


def rows_joined(batches):
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def test_inputs_satisfy_the_interfaces(small_input):
    source: Input = small_input.build()
    evaluation: EvaluationInput = source.held_out()
    assert evaluation.spec() == source.spec()


def test_building_and_spec_touch_no_disk(small_input, texts):
    texts.rename(texts.with_name("gone"))
    source = small_input.build()
    assert source.vocab_size == 257
    assert source.spec().tokens == ArraySpec((4, 16), "int32", ("batch", "sequence"))
    assert source.spec().extras["target_bytes"].dtype == "int32"
    source.held_out(num_batches=2).spec()
    assert not data_folder().exists()


def test_batches_are_as_the_spec_promises(small_input):
    source = small_input.build()
    for batch in (source.batch(0), source.held_out().batch(0)):
        found = jax.tree.map(lambda array: (array.shape, array.dtype.name), batch)
        promised = jax.tree.map(lambda spec: (spec.shape, spec.dtype), source.spec())
        assert found == promised


@pytest.mark.parametrize("count", [1, 2, 4])
def test_hosts_together_make_the_same_batch(small_input, count):
    whole = small_input.build().batch(11)
    share = 4 // count
    starts = range(0, 4, share)
    shares = [small_input.build().batch(11, slice(start, start + share)) for start in starts]
    assert same(rows_joined(shares), whole)


def test_a_run_resumes_at_any_step(small_input):
    unbroken = small_input.build()
    batches = [unbroken.batch(step) for step in range(12)]
    for step in (11, 3, 7):
        assert same(small_input.build().batch(step), batches[step])


def test_the_seed_decides_the_order(small_input):
    first, again, other = (small_input.clone(seed=seed).build() for seed in (1, 1, 2))
    assert same(first.batch(0), again.batch(0))
    assert not same(first.batch(0), other.batch(0))


def test_skipped_batches_are_passed_over(small_input):
    plain, skipping = small_input.build(), small_input.clone(skips=((2, 5),)).build()
    assert same(skipping.batch(1), plain.batch(1))
    assert same(skipping.batch(2), plain.batch(5))


def test_an_epoch_covers_the_training_text(small_input):
    source = small_input.clone(batch_size=1).build()
    split = source.prepare().splits["train"]
    num_rows = -(-(split.tokens - 1) // 16)
    counted = sum(source.batch(step).loss_weights.sum() for step in range(num_rows))
    assert counted == split.tokens - split.documents


def test_held_out_covers_its_text_once_and_pads(small_input):
    source = small_input.clone(batch_size=64).build()
    evaluation = source.held_out()
    split = source.prepare().splits["held_out"]
    batches = [evaluation.batch(index) for index in range(evaluation.num_batches)]
    assert sum(batch.loss_weights.sum() for batch in batches) == split.tokens - split.documents
    # All bytes but the first of each document are some target's; the end of text has none.
    total = sum(batch.extras["target_bytes"].sum() for batch in batches)
    assert total == split.bytes - split.documents
    last = batches[-1]
    padding = last.segment_ids == 0
    assert padding[-1].all()
    for name in ("loss_weights", "positions"):
        assert not getattr(last, name)[padding].any()
    assert not last.extras["target_bytes"][padding].any()


def test_held_out_is_no_part_of_training(small_input):
    source = small_input.clone(split="held_out", batch_size=1).build()
    held_out = source.held_out()
    rows = {held_out.batch(index).tokens.tobytes() for index in range(held_out.num_batches)}
    assert source.batch(0).tokens.tobytes() in rows
    training = small_input.clone(batch_size=1).build()
    assert not any(training.batch(step).tokens.tobytes() in rows for step in range(20))


def test_held_out_can_be_limited(small_input):
    evaluation = small_input.clone(batch_size=1).build().held_out(num_batches=2)
    assert evaluation.num_batches == 2
    with pytest.raises(IndexError):
        evaluation.batch(2)
    with pytest.raises(ConfigError, match="num_batches: expected at least 1 or None"):
        small_input.build().held_out(num_batches=0)


def test_the_tokenizer_is_ready(small_input):
    small_input.set(tokenizer=BytePairTokenizer.Config(vocab_size=280))
    source = small_input.build()
    assert source.tokenizer.decode(source.tokenizer.encode("any é")) == "any é"
    assert source.tokenizer.vocab_size == source.vocab_size == 280


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequence_length": 0}, r"^sequence_length: expected 1 or more, got 0"),
        ({"batch_size": -1}, r"^batch_size: expected 1 or more, got -1"),
        ({"skips": ((4, 2),)}, r"skips: expected ranges .* got \(4, 2\)"),
    ],
)
def test_bad_numbers_are_refused_at_build(small_input, values, message):
    with pytest.raises(ConfigError, match=message):
        small_input.clone(**values).build()


def test_required_fields_and_splits_are_checked():
    with pytest.raises(ConfigError, match=r"sequence_length.*batch_size"):
        TokenInput.Config().build()
    with pytest.raises(ConfigError, match=r"split: expected one of 'train', 'held_out'"):
        TokenInput.Config(split="test")


def test_batches_go_through_jit_and_prefetch(small_input):
    source = small_input.build()
    total = jax.jit(lambda batch: (batch.loss_weights * batch.extras["target_bytes"]).sum())
    with Prefetcher(source.batch, first=5, end=8) as batches:
        for step, batch in enumerate(batches, start=5):
            assert total(batch) == source.batch(step).extras["target_bytes"].sum()


def test_a_spec_lowers_with_no_data(small_input, texts):
    texts.rename(texts.with_name("gone"))
    structs = jax.tree.map(lambda spec: spec.struct(), small_input.build().spec())
    shape = jax.eval_shape(lambda batch: batch.tokens.sum(axis=1), structs)
    assert shape.shape == (4,)


def test_a_spec_names_every_axis():
    with pytest.raises(ValueError, match=r"2 dimensions \(4, 16\) but 1 logical axes"):
        ArraySpec((4, 16), "int32", ("batch",))
    assert ArraySpec((4,), "bfloat16", (None,)).struct().dtype.name == "bfloat16"
