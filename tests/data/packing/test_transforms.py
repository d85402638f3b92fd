"""Transformations of tokens: fill in the middle, and prefixes without a loss."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.config import ConfigError, config_for, from_text, replace, to_text
from dovetail.data import BestFit, ConcatenateAndSplit, FillInTheMiddle, PadEach, PrefixLM
from dovetail.data.order import draws
from dovetail.kernels.attention import Causal, Either, Prefix
from dovetail.layers import BaseAttention
from dovetail.models.llama import llama
from dovetail.module import functional
from tests.data.packing.cases import END, all_rows, fields, split_of
from tests.layers.cases import random_params

# Ids after the end of text are special tokens, which have no bytes.
PRE, SUF, MID = 10, 11, 12
TOKEN_BYTES = np.array([1, 2, 3, 1, 1, 1, 5, 1, 1, 0, 0, 0, 0], np.int32)
SENTINELS = {"prefix_id": PRE, "suffix_id": SUF, "middle_id": MID}

lists_of_documents = st.lists(st.lists(st.integers(0, 8), max_size=30), min_size=1, max_size=12)
rates = st.sampled_from([0.0, 0.5, 1.0])


def fill(**values):
    return FillInTheMiddle.Config(**SENTINELS, **values).build()


def rows_with(documents, *transforms, length=16, packing=None):
    """Returns the pieces of each row and the batch, without transformations and with them."""
    packed = (packing or BestFit.Config()).build().pack(split_of(documents), length)
    rows = all_rows(packed)
    plain = packed.batch(rows, END, TOKEN_BYTES)
    return packed.documents(rows), plain, packed.batch(rows, END, TOKEN_BYTES, transforms)


def joined(tokens):
    """Returns the tokens in their order in the document, and whether the suffix came first."""
    assert tokens[0] == PRE
    assert tokens[-1] == END
    assert sorted(token for token in tokens if token > END) == [PRE, SUF, MID]
    suffix, middle = tokens.index(SUF), tokens.index(MID)
    prefix, rest = tokens[1:suffix], tokens[suffix + 1 : middle]
    return [*prefix, *tokens[middle + 1 : -1], *rest], not prefix


@given(lists_of_documents, st.integers(1, 20), rates, rates, st.integers(0, 9))
def test_the_middle_of_documents_is_moved(documents, length, rate, spm_rate, seed):
    transform = fill(rate=rate, spm_rate=spm_rate, seed=seed)
    rows, plain, changed = rows_with(documents, transform, length=length)
    for row, pieces in enumerate(rows):
        for piece in pieces:
            inside = row, slice(piece.position, piece.position + piece.length)
            before, after = plain.tokens[inside].tolist(), changed.tokens[inside].tolist()
            if before == after:
                assert rate < 1 or piece.length <= 4
                assert (changed.targets[inside] == plain.targets[inside]).all()
                assert (changed.loss_weights[inside] == plain.loss_weights[inside]).all()
                continue
            assert rate > 0
            text, suffix_first = joined(after)
            assert text == before[:-4]
            assert suffix_first or spm_rate < 1
            targets = changed.targets[inside].tolist()
            assert targets[:-1] == after[1:]
            weights = [float(token not in (PRE, SUF, MID)) for token in after[1:]] + [0.0]
            assert changed.loss_weights[inside].tolist() == weights
            sizes = [TOKEN_BYTES[t] * w for t, w in zip(targets, weights, strict=True)]
            assert changed.extras["target_bytes"][inside].tolist() == sizes
    for name in ("positions", "segment_ids"):
        np.testing.assert_array_equal(getattr(changed, name), getattr(plain, name))


def test_all_cuts_and_both_orders_occur():
    document = list(range(8))
    rows, _, changed = rows_with(
        [document] * 3000, fill(rate=1.0), length=9, packing=PadEach.Config()
    )
    assert len(rows) == 3001
    kinds = {tuple(row) for row in changed.tokens[:-1].tolist()}
    found = [joined(list(kind)) for kind in kinds]
    assert all(text == document[:5] for text, _ in found)
    # Of five tokens there are 21 pairs of points. In PSM each gives another row; in SPM the second
    # point alone counts, and its six rows are those of PSM with an empty prefix.
    assert len(kinds) == 21


def test_the_rates_are_of_documents():
    documents = [[1] * 8] * 4000
    transform = fill(rate=0.3, spm_rate=0.25)
    _, _, changed = rows_with(documents, transform, length=9, packing=PadEach.Config())
    tokens = changed.tokens[:-1]
    chosen = tokens[(tokens == MID).any(axis=1)]
    assert 0.27 < len(chosen) / 4000 < 0.33
    suffix_first = np.mean(chosen[:, 1] == SUF)
    assert 0.25 < suffix_first < 0.25 + 0.75 * 0.4  # in PSM the prefix may be empty


def test_all_pieces_of_a_document_are_changed_or_none():
    _, _, changed = rows_with([[1] * 40] * 50, fill(), length=8, packing=PadEach.Config())
    documents = (changed.tokens[:-1] == MID).any(axis=1).reshape(50, -1)[:, :5]
    assert (documents == documents[:, :1]).all()
    assert 0 < documents[:, 0].sum() < 50


def test_any_row_is_transformed_alone():
    packed = ConcatenateAndSplit.Config().build().pack(split_of([[1] * 9, [2] * 30] * 9), 16)
    transforms = fill(rate=1.0), PrefixLM.Config(length=3).build()
    whole = fields(packed.batch(all_rows(packed), END, TOKEN_BYTES, transforms))
    rows = np.array([7, -1, 2])
    for all_of, found in zip(
        whole, fields(packed.batch(rows, END, TOKEN_BYTES, transforms)), strict=True
    ):
        np.testing.assert_array_equal(found, all_of[rows])


@given(lists_of_documents, st.integers(1, 9))
def test_targets_in_a_prefix_have_no_loss(documents, length):
    _, plain, changed = rows_with(documents, PrefixLM.Config(length=length).build())
    is_outside = plain.positions + 1 >= length
    np.testing.assert_array_equal(changed.loss_weights, plain.loss_weights * is_outside)
    assert not changed.extras["target_bytes"][~is_outside].any()
    np.testing.assert_array_equal(changed.tokens, plain.tokens)


def test_a_prefix_is_attended_to_in_each_document():
    """The mask counts positions, and these begin anew in each document."""
    documents = [[1, 2, 3, 4, 5], [6, 7, 8, 1], [2, 3, 4]]
    _, _, packed = rows_with(documents, PrefixLM.Config(length=3).build(), length=16)
    _, _, alone = rows_with(
        documents, PrefixLM.Config(length=3).build(), length=16, packing=PadEach.Config()
    )
    sizes = {"width": 32, "num_layers": 2, "num_heads": 4, "hidden": 48}
    config = llama(**sizes, vocab_size=END + 1, tied=False)
    attention = config.decoder.stack.layer.attention
    prefix = config_for(Prefix, length=3)
    mask = config_for(Either, first=config_for(Causal), second=prefix)
    masked = replace(config, BaseAttention, attention.clone(mask=mask))
    losses = [
        [float(total_loss(each, batch)) for batch in (packed, alone)] for each in (config, masked)
    ]
    for in_a_row, one_by_one in losses:
        np.testing.assert_allclose(in_a_row, one_by_one, rtol=1e-5)
    assert abs(losses[0][0] - losses[1][0]) > 1e-3


def total_loss(config, batch):
    model = config.build()
    params = random_params(model)
    _, outputs = jax.jit(lambda p, b: functional(model, p, b, losses="return"))(params, batch)
    return outputs.losses["loss/next_token"].total


def test_draws_are_even_and_depend_on_all_keys():
    numbers = np.arange(20000)
    found = draws(3, 2, numbers, numbers // 2)
    assert found.shape == (2, 20000)
    assert 0 <= found.min() < 0.001
    assert 0.999 < found.max() < 1
    counts = np.histogram(found, bins=20, range=(0, 1))[0]
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)
    assert abs(np.corrcoef(found)[0, 1]) < 0.03
    np.testing.assert_array_equal(found[:, 7:8], draws(3, 2, numbers[7:8], numbers[7:8] // 2))
    for other in (draws(4, 2, numbers, numbers // 2), draws(3, 2, numbers, numbers)):
        assert (other != found).mean() > 0.99


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1.5}, r"^rate: expected 0 to 1, got 1.5"),
        ({"spm_rate": -0.1}, r"^spm_rate: expected 0 to 1, got -0.1"),
        ({"middle_id": PRE}, r"^middle_id: expected three different sentinels, got \[10, 11, 10\]"),
        ({"middle_id": 13}, r"^middle_id: expected an id from 0 to 12, got 13"),
        ({"suffix_id": 3}, r"^suffix_id: expected a special or unused id of the tokenizer, but te"),
        ({"prefix_id": END}, r"^prefix_id: .* or it is the end of text \(9\). Add special tokens"),
    ],
)
def test_sentinels_and_rates_are_checked(values, message):
    with pytest.raises(ConfigError, match=message):
        rows_with([[1, 2]], FillInTheMiddle.Config(**(SENTINELS | values)).build())


def test_a_prefix_has_a_length():
    with pytest.raises(ConfigError, match=r"^length: expected 1 or more, got 0"):
        PrefixLM.Config(length=0).build()


def test_an_input_transforms_its_batches(small_input):
    plain = small_input.build()
    small_input.set(transforms=(PrefixLM.Config(length=5),))
    source = small_input.build()
    for one, other in (
        (source.batch(2), plain.batch(2)),
        (source.held_out().batch(0), plain.held_out().batch(0)),
    ):
        expected = other.loss_weights * (other.positions >= 4)
        np.testing.assert_array_equal(one.loss_weights, expected)
        np.testing.assert_array_equal(one.tokens, other.tokens)
    assert from_text(to_text(small_input)) == small_input


def test_the_error_for_a_sentinel_says_where_it_is(small_input):
    ids = {name: sentinel + 990 for name, sentinel in SENTINELS.items()}
    small_input.set(transforms=(FillInTheMiddle.Config(**ids),))
    with pytest.raises(ConfigError, match=r"transforms.0.prefix_id: expected an id from 0 to 256"):
        small_input.build().batch(0)


def test_pieces_are_not_changed_in_place():
    """A transformation of two batches at once would meet the other's changes."""
    packed = BestFit.Config().build().pack(split_of([[1] * 9] * 5), 16)
    seen = []

    def look(pieces):
        seen.append(pieces)
        return pieces

    rows = all_rows(packed)
    packed.batch(rows, END, TOKEN_BYTES, (look, fill(rate=1.0), look))
    untouched = []
    packed.batch(rows, END, TOKEN_BYTES, (lambda pieces: untouched.append(pieces) or pieces,))
    for field in dataclasses.fields(seen[0]):
        pair = getattr(seen[0], field.name), getattr(untouched[0], field.name)
        np.testing.assert_array_equal(*pair)
    assert (seen[1].tokens_N != seen[0].tokens_N).any()
