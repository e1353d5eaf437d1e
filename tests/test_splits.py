"""Who is in which part: shares, ids and fingerprints, and the promises that all splits keep."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import counts, refused, rows, within

import csada.data
from csada.data import Normalization, Part, Splits
from csada.data.splits import by_content, hold_out, proportional, scaled
from csada.errors import InputError


def test_proportional_gives_the_exact_number_and_the_classes_their_share():
    labels = np.repeat([0, 1, 2, 3], [100, 50, 33, 1])
    index = proportional(labels, 37, seed=0)
    assert len(index) == len(set(index)) == 37
    assert np.all(np.abs(np.bincount(labels[index]) - np.array([100, 50, 33, 1]) * 37 / 184) < 1)
    assert len(np.unique(labels[proportional(labels, 4, seed=0)])) == 4


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((47, 16, 37), 10, [5, 1, 4]),  # 4.7, 1.6 and 3.7: the two left over go to the remainders of 0.7
        ((16, 47, 37), 10, [1, 5, 4]),
        ((10, 25, 65), 10, [1, 3, 6]),  # 2.5 and 6.5: the first of equals
        ((1, 60, 39), 10, [1, 6, 3]),  # 0.1 was raised to one: no remainder is left to give
    ],
)
def test_what_rounding_leaves_over_goes_to_the_largest_remainders(sizes, count, expected):
    labels = np.repeat([0, 1, 2], sizes)
    assert np.bincount(labels[proportional(labels, count, seed=0)]).tolist() == expected


@pytest.mark.parametrize("validation", [19, 0.1, 0.103])
def test_hold_out_takes_a_count_or_a_fraction(validation):
    labels = np.repeat([0, 1], [90, 95])
    kept, held_out = hold_out(labels, validation, seed=3)
    assert len(held_out) == (19 if validation != 0.1 else 18)
    assert sorted([*kept, *held_out]) == list(range(185))
    assert abs(int((labels[held_out] == 0).sum()) - len(held_out) * 90 / 185) < 1


@pytest.mark.parametrize("validation", [0, 185, 1.0, -0.1])
def test_hold_out_refuses_to_leave_a_part_empty(validation):
    with pytest.raises(InputError, match=f"validation={validation}"):
        hold_out(np.zeros(185, int), validation, seed=0)


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_scale_out_of_range_is_an_error(scale):
    refused("scale", "toy", scale=scale)


def test_scaled_keeps_every_class_of_every_part():
    part = Part(torch.arange(110), torch.tensor([0] * 100 + [1] * 10))
    small = scaled(Splits(part, part, part, ("a", "b")), 0.03, seed=0)
    assert [counts(p) for p in (small.train, small.validation, small.test)] == [[2, 1]] * 3


def test_ids_tell_samples_by_their_content_whatever_their_order_and_place():
    x, y = torch.randn(40, 2, 3), torch.zeros(40, dtype=torch.long)
    part = Part(x, y)
    order = torch.randperm(40)
    assert part.ids.dtype == np.uint64 and len(set(part.ids.tolist())) == 40
    np.testing.assert_array_equal(Part(x.clone(), y + 1, Normalization((3.0,), (2.0,))).ids, part.ids)
    np.testing.assert_array_equal(part.take(order).ids, part.ids[order.numpy()])
    np.testing.assert_array_equal(Part(x.transpose(1, 2).contiguous().transpose(1, 2), y).ids, part.ids)
    assert Part(x[:0], y[:0]).ids.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.int64])
def test_ids_are_made_of_any_kind_of_numbers(dtype):
    x = torch.arange(5).to(dtype)
    assert len(set(Part(x, torch.zeros(5)).ids.tolist())) == 5


def test_a_fingerprint_is_that_of_the_parts():
    splits, same, other = (csada.data.load("digits", seed=seed) for seed in (0, 0, 1))
    turned = replace(splits, train=splits.train.take(torch.randperm(len(splits.train))))
    assert splits.fingerprint == same.fingerprint == turned.fingerprint != other.fingerprint
    assert replace(splits, validation=splits.test, test=splits.validation).fingerprint != splits.fingerprint
    assert len(splits.fingerprint) == 16 and int(splits.fingerprint, 16)


def test_samples_of_another_split_that_were_trained_on_are_found():
    trained_on = np.sort(csada.data.load("digits", seed=1).ids.train)
    splits = csada.data.load("digits", seed=0)
    own = rows(csada.data.load("digits", seed=1).train)
    expected = [tuple(row.flatten().tolist()) in own for row in splits.test.x]
    assert csada.data.seen(splits.ids.test, trained_on).tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert not csada.data.seen(splits.ids.test, splits.ids.train).any()


@pytest.mark.parametrize("n", [50, 400, 5000])
@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("parts", [(60, 20, 20), (0.9, 0.1)])
def test_parts_have_their_shares(n, seed, parts):
    ids = Part(torch.arange(n), torch.zeros(n)).ids
    found = by_content(ids, parts, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(n))
    assert all(within(len(index), n, share / sum(parts)) for index, share in zip(found, parts, strict=True))
