"""Every loader on small files made by hand, whole and broken, and the promises that all splits keep."""

import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from csada.shipping.predict import Model, predict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from test_cli import csada as program

import csada.data
from csada.data import Augmentation, Normalization, Part, Splits
from csada.data.folder import listed, save
from csada.data.pmi import CLASSES, FOLDERS
from csada.data.splits import by_content, hold_out, proportional, scaled
from csada.errors import InputError

REAL, REAL_CACHE = os.environ.get("CSADA_DATA"), os.environ.get("CSADA_CACHE")
PARTS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("CSADA_DATA", raising=False)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def counts(part):
    return torch.bincount(part.y).tolist()


def rows(part):
    return {tuple(row.flatten().tolist()) for row in part.x}


# splits


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
    with pytest.raises(InputError, match="scale"):
        csada.data.load("toy", scale=scale)


def test_scaled_keeps_every_class_of_every_part():
    part = Part(torch.arange(110), torch.tensor([0] * 100 + [1] * 10))
    small = scaled(Splits(part, part, part, ("a", "b")), 0.03, seed=0)
    assert [counts(p) for p in (small.train, small.validation, small.test)] == [[2, 1]] * 3


# who is in which part


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


# by name


def test_unknown_names_and_options_are_named_with_a_way_out():
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        csada.data.load("minst")
    with pytest.raises(InputError, match=r"'spraed'.*did you mean 'spread'"):
        csada.data.load("toy", spraed=1)
    with pytest.raises(InputError, match="'size' for mnist; known: validation"):
        csada.data.load("mnist", size=3)


@pytest.mark.parametrize("layout", ["", "train/"])
def test_a_folder_with_the_name_of_a_data_set_is_not_passed_over(tmp_path, monkeypatch, layout):
    parts = [layout, "test/"] if layout else [""]
    write_folder(tmp_path / "digits", {f"{part}{name}": 15 for part in parts for name in ("cat", "dog")})
    with pytest.raises(InputError, match=r"'digits' .*write .*/digits for the folder, builtin:digits for the data set"):
        csada.data.load("digits", data_dir=tmp_path)
    monkeypatch.chdir(tmp_path)
    for load in (csada.data.load, csada.data.counts):
        with pytest.raises(InputError, match=r"write \./digits for the folder, builtin:digits for the data set"):
            load("digits")
    assert csada.data.load("./digits", size=16).classes == ("cat", "dog")
    assert list(csada.data.counts("./digits")["train"]) == ["cat", "dog"]
    assert csada.data.load("builtin:digits").name == "digits"
    assert list(csada.data.counts("builtin:digits")["train"]) == list("0123456789")
    with pytest.raises(InputError, match="builtin:cats"):
        csada.data.load("builtin:cats")


def test_where_a_data_set_lies_is_no_folder_of_images(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert csada.data.load("mnist", data_dir=tmp_path, validation=10).name == "MNIST"


def test_digits_are_those_of_scikit_learn_in_a_seeded_stratified_split():
    splits = csada.data.load("digits", seed=1)
    digits = load_digits()
    together = torch.cat([getattr(splits, part).x for part in PARTS])
    assert together.shape == (1797, 1, 8, 8)
    by_pixels = sorted(together.flatten(1).tolist())
    assert by_pixels == sorted(digits.data.astype(int).tolist())  # each once: the parts are disjoint
    for part, share in zip(PARTS, (0.6, 0.2, 0.2), strict=True):
        expected = np.bincount(digits.target) * share
        assert np.all(np.abs(np.array(counts(getattr(splits, part))) - expected) <= 1)
    assert torch.equal(splits.test.x, csada.data.load("digits", seed=1).test.x)
    assert not torch.equal(splits.test.x[:50], csada.data.load("digits", seed=2).test.x[:50])
    x = splits.train.batch(torch.arange(len(splits.train))).x
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01


def test_digits_are_split_as_in_every_committed_record():
    splits = csada.data.load("digits")
    digest = hashlib.sha256()
    for part in (splits.train, splits.validation, splits.test):
        digest.update(part.x.numpy().tobytes() + part.y.numpy().tobytes())
    assert digest.hexdigest()[:16] == "96f46dd992840fb1"


def test_scale_takes_a_fraction_of_every_part():
    whole, tenth = csada.data.load("digits"), csada.data.load("digits", scale=0.1)
    for part in PARTS:
        assert len(getattr(tenth, part)) == round(len(getattr(whole, part)) / 10)
        assert rows(getattr(tenth, part)) <= rows(getattr(whole, part))
        assert min(counts(getattr(tenth, part))) >= 3


def test_toy_has_the_means_and_covariances_of_the_paper():
    splits = csada.data.load("toy", spread=1)
    assert [counts(getattr(splits, part)) for part in PARTS] == [[50] * 3, [500] * 3, [500] * 3]
    assert splits.classes == ("red", "green", "blue")
    for label, mean in enumerate([(0, 8), (7, -6), (-7, -6)]):
        x = splits.test.x[splits.test.y == label].numpy()
        np.testing.assert_allclose(x.mean(0), mean, atol=0.25)
        np.testing.assert_allclose(np.cov(x.T), [[2, 0.5], [0.5, 2]], atol=0.4)
    assert torch.equal(splits.train.x, csada.data.load("toy", spread=1).train.x)
    assert not torch.equal(splits.train.x, csada.data.load("toy", spread=1, seed=1).train.x)


def test_toy_spread_multiplies_the_deviations_and_nothing_else():
    one, two = csada.data.load("toy", spread=1).test, csada.data.load("toy").test
    mean = torch.tensor([[0.0, 8], [7, -6], [-7, -6]])[one.y]
    torch.testing.assert_close(two.x - mean, 2 * (one.x - mean), atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="spread"):
        csada.data.load("toy", spread=0)


# MNIST


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=40, test=20, pack=gzip.compress, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (train + test, 28, 28))
    labels = np.arange(train + test) % 10
    for prefix, chosen in (("train", slice(train)), ("t10k", slice(train, None))):
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images[chosen])))
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels[chosen])))
    return images, labels


@pytest.mark.parametrize("inner", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_reads_the_standard_files_wherever_they_usually_lie(tmp_path, inner, packed):
    images, labels = write_mnist(tmp_path / inner, **({} if packed else {"pack": bytes, "suffix": ""}))
    splits = csada.data.load("mnist", data_dir=tmp_path, validation=10)
    assert splits.name == "MNIST"
    assert [len(getattr(splits, part)) for part in PARTS] == [30, 10, 20]
    assert counts(splits.validation) == [1] * 10
    np.testing.assert_array_equal(splits.test.x[:, 0], images[40:])
    np.testing.assert_array_equal(splits.test.y, labels[40:])
    assert rows(splits.train) | rows(splits.validation) == {tuple(image.flatten().tolist()) for image in images[:40]}
    assert (splits.train.augmentation, splits.test.augmentation) == (Augmentation(padding=2), Augmentation())
    x = splits.test.batch(torch.arange(20)).x
    np.testing.assert_allclose(x[:, 0], (images[40:] / 255 - 0.1307) / 0.3081, rtol=1e-4, atol=1e-5)


def test_data_is_found_by_the_environment_and_in_the_user_cache(tmp_path, monkeypatch):
    write_mnist(tmp_path / "home" / "csada" / "mnist", train=30)
    assert len(csada.data.load("mnist", validation=10).train) == 20
    write_mnist(tmp_path / "shelf", train=40)
    monkeypatch.setenv("CSADA_DATA", str(tmp_path / "shelf"))
    assert len(csada.data.load("mnist", validation=10).train) == 30
    write_mnist(tmp_path / "mine", train=50)
    assert len(csada.data.load("mnist", data_dir=tmp_path / "mine", validation=10).train) == 40


@pytest.mark.parametrize(("name", "file"), [("mnist", "train-images-idx3-ubyte"), ("cifar10", "cifar-10-batches-py")])
def test_missing_data_says_what_goes_where_and_how_to_get_it(tmp_path, name, file):
    with pytest.raises(InputError, match=f"(?s){tmp_path}.*{file}.*csada data fetch {name}"):
        csada.data.load(name, data_dir=tmp_path)


def truncated(raw):
    return raw[: len(raw) // 2]


def other_magic(raw):
    return gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(raw)[4:])


def one_byte_less(raw):
    return gzip.compress(gzip.decompress(raw)[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "is damaged"),
        (other_magic, "begins with 00 00 0d 03"),
        (one_byte_less, "announces 20 x 28 x 28 values but holds 15,679"),
        (lambda raw: b"", "begins with"),
        (lambda raw: gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "announces"),
    ],
)
def test_damaged_mnist_images_are_named(tmp_path, damage, message):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=f"{path} {message}"):
        csada.data.load("mnist", data_dir=tmp_path, validation=10)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((20, 28, 28), "announces 20 x 28 x 28 values but holds more"),
        ((2000, 2000, 2000), "announces .* reads at most"),
    ],
)
def test_no_more_is_unpacked_of_mnist_than_its_header_announces(tmp_path, shape, message):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + np.array(shape, ">u4").tobytes() + bytes(100_000_000), 1))
    tracemalloc.start()
    with pytest.raises(InputError, match=f"{path} {message}"):
        csada.data.load("mnist", data_dir=tmp_path, validation=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_mnist_labels_must_fit_their_images(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.zeros(39))))
    with pytest.raises(InputError, match=f"{path} has 39 labels for the 40 images"):
        csada.data.load("mnist", data_dir=tmp_path, validation=10)
    path.write_bytes(gzip.compress(idx(np.full(40, 10))))
    with pytest.raises(InputError, match=f"{path} has the label 10"):
        csada.data.load("mnist", data_dir=tmp_path, validation=10)


# CIFAR-10


def cifar_batches(n=10):
    generator = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: {
            b"batch_label": b"a batch",
            b"labels": list(range(n)),
            b"data": generator.integers(0, 256, (n, 3072), dtype=np.uint8),
            b"filenames": [b"x.png"] * n,
        }
        for name in names
    }


def as_old(raw):
    return raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def as_new(raw):
    return as_old(raw).replace(b"numpy.core.multiarray", b"numpy._core.multiarray")


def write_cifar(folder, batches, rewrite=as_old):
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in batches.items():
        (folder / name).write_bytes(rewrite(pickle.dumps(batch, protocol=2)))


@pytest.mark.parametrize("rewrite", [as_old, as_new])
@pytest.mark.parametrize("layout", ["folder", "the folder itself", "archive"])
def test_cifar10_reads_folder_and_archive_of_any_numpy(tmp_path, layout, rewrite):
    batches = cifar_batches()
    folder = tmp_path / "unpacked" / "cifar-10-batches-py"
    write_cifar(folder, batches, rewrite)
    where = {"folder": folder.parent, "the folder itself": folder, "archive": tmp_path}[layout]
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
    splits = csada.data.load("cifar10", data_dir=where, validation=0.2)
    assert splits.name == "CIFAR-10"
    assert [len(getattr(splits, part)) for part in PARTS] == [40, 10, 10]
    np.testing.assert_array_equal(splits.test.x.flatten(1), batches["test_batch"][b"data"])
    assert rows(splits.train) | rows(splits.validation) == {
        tuple(row) for name, batch in batches.items() if name != "test_batch" for row in batch[b"data"].tolist()
    }
    assert splits.train.augmentation == Augmentation(padding=4, flip=True)
    assert splits.classes[splits.test.y[3]] == "cat"


def by_python_2(batch, protocol):
    """The layout of the published files."""

    def string(value):
        if protocol == 0:
            return b"S" + repr(value)[1:].encode() + b"\n"
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"I%d\n" % value if protocol == 0 else b"M" + struct.pack("<H", value)

    def tuple_of(*values):
        return b"(" + b"".join(values) + b"t"

    def made(name, arguments, state):
        return b"c" + name + b"\n" + arguments + b"Rp7\n" + state + b"b"

    none, false, minus = b"N", b"\x89" if protocol == 2 else b"I00\n", b"I-1\n"
    state = tuple_of(number(3), string(b"|"), none, none, none, minus, minus, number(0))
    dtype = made(b"numpy\ndtype", tuple_of(string(b"u1"), number(0), number(1)), state)
    shape = tuple_of(*map(number, batch[b"data"].shape))
    state = tuple_of(number(1), shape, dtype, false, string(batch[b"data"].tobytes()))
    arguments = tuple_of(b"cnumpy\nndarray\n", tuple_of(number(0)), string(b"b"))
    rows = {
        b"batch_label": string(batch[b"batch_label"]) + b"p2000000\n",
        b"labels": b"(" + b"".join(map(number, batch[b"labels"])) + b"l",
        b"data": made(b"numpy.core.multiarray\n_reconstruct", arguments, state),
        b"filenames": b"(lp3\n" + b"".join(string(name) + b"a" for name in batch[b"filenames"]),
    }
    start = b"\x80\x02" if protocol == 2 else b""
    return start + b"(dp1\n" + b"".join(string(key) + value + b"s" for key, value in rows.items()) + b"."


@pytest.mark.parametrize(
    "write",
    [
        *(lambda batch, p=p: by_python_2(batch, p) for p in range(3)),
        *(lambda batch, p=p: pickle.dumps(batch, protocol=p) for p in range(5)),
    ],
)
def test_batches_of_every_protocol_hold_the_same_rows(tmp_path, write):
    batches = cifar_batches()
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, batch in batches.items():
        (folder / name).write_bytes(write(batch))
    splits = csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)
    np.testing.assert_array_equal(splits.test.x.flatten(1), batches["test_batch"][b"data"])
    assert splits.test.y.tolist() == list(range(10))


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_pickle_that_would_run_code_is_refused(tmp_path):
    folder, mark = tmp_path / "cifar-10-batches-py", tmp_path / "it-ran"
    for evil in (Evil(os.system, f"touch {mark}"), Evil(eval, f"open({str(mark)!r}, 'w')"), Evil(np.save, mark, [1])):
        write_cifar(folder, cifar_batches() | {"data_batch_3": {b"data": evil}})
        with pytest.raises(InputError, match=r"data_batch_3 asks for .*no part of CIFAR-10"):
            csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)
        assert not mark.exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"labels": [1]}, "is damaged"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "has 1 labels for 2 images"),
        ({b"data": np.zeros((2, 3071), np.uint8), b"labels": [1, 2]}, "3,072 bytes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "labels from 0 to 9"),
        ({b"data": [0, 1], b"labels": [1, 1]}, "3,072 bytes"),
        ([1, 2], "is damaged"),
    ],
)
def test_damaged_cifar10_batch_is_named(tmp_path, batch, message):
    write_cifar(tmp_path / "cifar-10-batches-py", cifar_batches() | {"test_batch": batch})
    with pytest.raises(InputError, match=f"test_batch .*{message}"):
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)


def hidden_pointers():
    """An array of four addresses, of a dtype that turns them into objects once the array is there."""

    def dtype(kind):
        return b"cnumpy\ndtype\nU\x02" + kind + b"K\0K\1\x87R"

    def state(flags):
        objects = dtype(b"O8") + b"(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"
        return b"(K\3U\1|NU\1a\x85}U\1a" + objects + b"K\0\x86sK\x08K\1K" + flags + b"tb"

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R(K\1K\4\x85"
    array += dtype(b"V8") + b"q\1" + state(b"\0") + b"\x89U\x20" + b"@" + b"A" * 31 + b"tb"
    return b"\x80\2}(U\4data" + array + b"U\6labels]U\5again" + b"h\1" + state(b"\x3f") + b"u."


def test_no_file_chooses_an_address_in_memory(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-py", cifar_batches())
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(hidden_pointers())
    run = program("data", "show", "cifar10", "--data-dir", tmp_path)
    assert run.returncode == 2, run.returncode
    assert "data_batch_1 does not hold rows of 3,072 bytes" in run.stderr and len(run.stderr.splitlines()) == 1


MORE = b"(U\6labels]U\4dataNu."


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\2}",
        b"}" + MORE[:-3],
        b"(" * 2_000_000 + b".",
        b"}" + b"]" + b"\x85" * 400_000 + b"Ns.",  # deep, and the key of a dict
        b"]q\1h\1a" + b".",  # a list in itself
        b"}q\1(U\6labelsh\1U\4datah\1u.",
        b"}(U\6labels]q\1h\1aU\4datah\1u.",
        b"}r\xff\xff\xff\xff0j\xfe\xff\xff\xff" + MORE,
        b"}p4000000000\n" + MORE,
        b"}g4000000000\n" + MORE,
        b"}\x8e" + b"\xff" * 8 + MORE,
        b"}T\xff\xff\xff\xff" + MORE,
        b"}I" + b"9" * 100_000 + b"\n" + MORE,
        b"}Sno quotes\n" + MORE,
        b"}X\1\0\0\0\xff" + MORE,
        b"}cnumpy\nndarray\nR" + MORE,
        b"}cnumpy",
        b"]q\0" + b"](h\0h\0h\0h\0eq\0" * 40 + b"h\0\x93.",  # 4 ** 40 lists to whoever looks at the name
        b"tebusaR.",
        MORE,
        b"\x82\x01.",
        b"c_codecs\nencode\n(X\4\0\0\0rot1X\5\0\0\0rot13tR.",
        b"c_codecs\nencode\nq\0X\0\0\1\0" + b"x" * 65536 + b"X\6\0\0\0latin1\x86q\1R" + b"h\0h\1R" * 100_000 + b".",
    ],
    ids=range(24),
)
def test_a_strange_batch_is_refused_in_one_line_and_little_memory(tmp_path, raw):
    write_cifar(tmp_path / "cifar-10-batches-py", cifar_batches())
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"test_batch (is damaged|does not hold)") as error:
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000 and len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
@pytest.mark.parametrize("target", ["data_batch_1", "nowhere"])
def test_only_plain_files_are_read_from_an_archive(tmp_path, kind, target):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.type, member.linkname = kind, f"cifar-10-batches-py/{target}"
        tar.addfile(member)
    with pytest.raises(InputError, match=f"{archive} holds .*data_batch_1', which is no plain file"):
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)


def test_an_archive_that_unpacks_to_more_than_any_cifar10_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("csada.data.cifar10.LARGEST", 50_000)
    write_cifar(tmp_path / "files", {"data_batch_1": bytes(100_000)}, bytes)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "files", "cifar-10-batches-py")
    with pytest.raises(InputError, match="unpacks to more than 50,000 bytes"):
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)


def test_broken_cifar10_files_are_named(tmp_path):
    folder = tmp_path / "a" / "cifar-10-batches-py"
    write_cifar(folder, cifar_batches())
    (folder / "data_batch_2").write_bytes((folder / "data_batch_2").read_bytes()[:500])
    with pytest.raises(InputError, match="data_batch_2 is damaged"):
        csada.data.load("cifar10", data_dir=folder.parent, validation=0.2)
    (folder / "data_batch_2").unlink()
    with pytest.raises(InputError, match="data_batch_2 cannot be read: No such file"):
        csada.data.load("cifar10", data_dir=folder.parent, validation=0.2)
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
    with pytest.raises(InputError, match=f"{archive} has no data_batch_2"):
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(InputError, match=f"{archive} is damaged"):
        csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)


def jpeg(seed, size=(32, 32)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(out, "JPEG")
    return out.getvalue()


def write_jpeg_archive(path, files):
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_cifar10_as_jpegs_is_read_and_says_so(tmp_path):
    classes = ("airplane", "dog")
    files = {f"train/{name}/{i:04}.jpg": jpeg(i) for name in classes for i in range(10)}
    files |= {f"test/{name}/{i:04}.jpg": jpeg(100 + i) for name in classes for i in range(3)}
    write_jpeg_archive(tmp_path / "cifar10-jpeg.tar.xz", files)
    for _ in range(2):  # decoded, then from the cache
        splits = csada.data.load("cifar10", data_dir=tmp_path, validation=4)
        assert splits.name == "CIFAR-10 (JPEG)"
        assert [len(getattr(splits, part)) for part in PARTS] == [16, 4, 6]
        assert splits.test.y.tolist() == [0, 0, 0, 5, 5, 5]
        expected = np.asarray(Image.open(io.BytesIO(files["test/dog/0001.jpg"]))).transpose(2, 0, 1)
        np.testing.assert_array_equal(splits.test.x[4], expected)


def test_broken_jpeg_archives_are_named(tmp_path):
    path = tmp_path / "cifar10-jpeg.tar.xz"
    write_jpeg_archive(path, {"train/unicorn/0000.jpg": jpeg(0)})
    with pytest.raises(InputError, match=r"train/unicorn/0000\.jpg"):
        csada.data.load("cifar10", data_dir=tmp_path)
    write_jpeg_archive(path, {"train/dog/0000.jpg": jpeg(0), "test/dog/0001.jpg": jpeg(1)[:200]})
    with pytest.raises(InputError, match=r"test/dog/0001\.jpg"):
        csada.data.load("cifar10", data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{path} is damaged"):
        csada.data.load("cifar10", data_dir=tmp_path)


# folders of images


def write_folder(root, per_class, size=(48, 40)):
    """{"train/cat": 5} -> train/cat/0.jpg ... 4.jpg; cats are reddish, so that what is read can be told apart."""
    for seed, (folder, n) in enumerate(per_class.items()):
        (root / folder).mkdir(parents=True)
        for i in range(n):
            (root / folder / f"{i}.jpg").write_bytes(jpeg(1000 * seed + i, size))


def test_folder_with_parts_keeps_them(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "val/cat": 2, "val/dog": 1, "test/cat": 3, "test/dog": 3})
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    (tmp_path / "train/.hidden").mkdir()
    splits = csada.data.load(tmp_path, size=16)
    assert splits.classes == ("cat", "dog")
    assert [counts(getattr(splits, part)) for part in PARTS] == [[5, 4], [2, 1], [3, 3]]
    expected = Image.open(tmp_path / "test/dog/2.jpg").convert("RGB").crop((4, 0, 44, 40))
    expected = np.asarray(expected.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(splits.test.x[5], expected)
    assert splits.skipped == ()


@pytest.mark.parametrize("layout", ["pmi", "pills", "folder"])
def test_training_sees_a_picture_as_predict_does(tmp_path, layout):
    """Photographs larger than the model's input, in a layout of each kind; predict reads the same files."""
    side = 224 if layout == "pmi" else 32
    root, folders = tmp_path / "photos", FOLDERS.values()
    if layout == "pills":
        splits = csada.data.load("pills", scale=0.005, size=side)
        save(splits, root)
    else:
        write_folder(root, {f"{part}/{ndc}": 1 for part in folders for ndc in CLASSES}, size=(330, 301))
        splits = csada.data.load("pmi", data_dir=root) if layout == "pmi" else csada.data.load(root, size=side)
    for part, folder in FOLDERS.items():
        given = getattr(splits, part)
        model = Model(splits.classes, {"shape": (3, side, side), "dtype": "uint8"}, caught)
        with pytest.raises(Caught) as seen:
            list(predict(model, [root / folder], batch_size=len(given)))
        x = torch.from_numpy(seen.value.args[0])
        assert torch.equal(given.batch(torch.arange(len(given))).x, given.normalization(x))


class Caught(Exception):
    """What a model was given."""


def caught(x):
    raise Caught(x)


@pytest.mark.parametrize("name", ["dev", "val", "valid", "validation"])
def test_the_validation_folder_has_several_names(tmp_path, name):
    root = tmp_path / "photos"
    write_folder(root, {f"{part}/{label}": 2 for part in ("train", name, "test") for label in ("cat", "dog")})
    splits = csada.data.load(root, size=16)
    assert [counts(getattr(splits, part)) for part in PARTS] == [[2, 2]] * 3 and splits.warnings == ()
    write_folder(root, {"holdout/cat": 1})
    (line,) = csada.data.load(root, size=16).warnings
    assert line == f"{root}: left out holdout, which is neither train, test nor validation"
    write_folder(root, {("val" if name != "val" else "dev") + "/cat": 1})
    with pytest.raises(InputError, match=r"has several validation folders: .*; keep one"):
        csada.data.load(root, size=16)


def test_folder_is_normalised_by_its_training_part(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "valid/cat": 2, "test/cat": 3})
    splits = csada.data.load(tmp_path, size=16)
    assert splits.warnings == tuple(f"{tmp_path}: {part} has no image of dog; add some" for part in PARTS[1:])
    x = splits.train.batch(torch.arange(9)).x
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert splits.test.normalization == splits.train.normalization


def test_folder_with_parts_stays_on_the_disk(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "valid/cat": 2, "test/cat": 3})
    splits = csada.data.load(tmp_path, size=16)
    storages = {getattr(splits, part).x.untyped_storage().data_ptr() for part in PARTS}
    assert len(storages) == 1  # three views of one mapped file


def test_folder_without_validation_cuts_it_from_train(tmp_path):
    write_folder(tmp_path, {"train/cat": 40, "train/dog": 50, "test/cat": 3, "test/dog": 3})
    splits = csada.data.load(tmp_path, size=16, validation=0.3)
    assert (len(splits.train) + len(splits.validation), counts(splits.test)) == (90, [3, 3])
    assert all(within(n, total, 0.3) for n, total in zip(counts(splits.validation), (40, 50), strict=True))
    assert not rows(splits.train) & rows(splits.validation)
    with pytest.raises(InputError, match="validation=20; give a fraction between 0 and 1"):
        csada.data.load(tmp_path, validation=20)


def test_folder_of_classes_is_split_by_seed(tmp_path):
    root = tmp_path / "pets"
    write_folder(root, {"cat": 20, "dog": 25})
    splits = csada.data.load(root, size=16)
    assert len(set.union(*(rows(getattr(splits, part)) for part in PARTS))) == 45
    assert rows(csada.data.load(root, size=16, seed=1).test) != rows(splits.test)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1  # every seed reads the same decoded images
    told = {part: dict(zip(splits.classes, counts(getattr(splits, part)), strict=True)) for part in PARTS}
    assert csada.data.counts(root) == told
    small = csada.data.load(root, size=16, scale=0.3)
    for part in PARTS:
        assert rows(getattr(small, part)) < rows(getattr(splits, part))


def within(n, total, share):
    return abs(n - total * share) <= 4 * (total * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("n", [50, 400, 5000])
@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("parts", [(60, 20, 20), (0.9, 0.1)])
def test_parts_have_their_shares(n, seed, parts):
    ids = Part(torch.arange(n), torch.zeros(n)).ids
    found = by_content(ids, parts, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(n))
    assert all(within(len(index), n, share / sum(parts)) for index, share in zip(found, parts, strict=True))


CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "rename", "relabel"]), st.integers(0, 10**9)), min_size=1, max_size=12
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, layout=st.sampled_from(["", "train/"]))
def test_no_change_to_a_folder_moves_another_image(tmp_path_factory, changes, layout):
    """Contents stand for the images: who is in which part is decided without decoding one."""
    root = tmp_path_factory.mktemp("photos")
    for name, content in {f"{label}/{i}.jpg": f"{label}{i}" for label in ("cat", "dog") for i in range(20)}.items():
        written(root / layout / name, content)
    if layout:
        written(root / "test/cat/0.jpg", "a test")
    before = parts_by_content(root)
    for number, (kind, k) in enumerate(changes):
        files = sorted((root / layout).glob("*/*.jpg"))
        path = files[k % len(files)]
        if kind == "add":
            written(path.with_name(f"{k % 7}-{number}.jpg"), f"new {k}")
        elif kind == "remove" and len(files) > 30:
            path.unlink()
        elif kind == "rename":
            path.rename(path.with_name(f"{k % 7}-{number}.jpg"))
        elif kind == "relabel":
            path.rename(path.parents[1] / ("cat", "dog")[k % 2] / f"{k % 7}-{number}.jpg")
    after = parts_by_content(root)
    moved = {content for content, part in after.items() if before.get(content, part) != part}
    assert not moved and set(before) & set(after)


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def parts_by_content(root):
    listing = listed(root, validation=0.3, seed=0).parts
    return {(root / path).read_text(): part for part, paths in listing.items() for path in paths}


def test_the_same_picture_twice_is_named(tmp_path):
    root = tmp_path / "by class"
    write_folder(root, {"cat": 15, "dog": 15})
    assert csada.data.load(root, size=16).warnings == ()
    (root / "cat/again.jpg").write_bytes((root / "cat/3.jpg").read_bytes())  # the same class, the same part: no harm
    assert csada.data.load(root, size=16).warnings == ()
    (root / "dog/cat.jpg").write_bytes((root / "cat/4.jpg").read_bytes())
    (line,) = csada.data.load(root, size=16).warnings
    assert line == f"{root}: the same image in two classes: cat/4.jpg and dog/cat.jpg; keep the right one"

    root = tmp_path / "by part"
    write_folder(root, {f"{part}/{label}": 5 for part in ("train", "valid", "test") for label in ("cat", "dog")})
    for i in range(4):
        (root / f"test/cat/twin{i}.jpg").write_bytes((root / f"train/cat/{i}.jpg").read_bytes())
    (line,) = csada.data.load(root, size=16).warnings
    assert "the same image in two parts: train/cat/0.jpg and test/cat/twin0.jpg, " in line
    assert line.endswith("... (4 in all); keep each in one part")


def test_classes_without_samples_in_a_part_are_named(tmp_path):
    root, found = tmp_path / "photos", set()
    write_folder(root, {"cat": 40, "dog": 40, "eel": 2})  # whichever parts the two fall into, another has none
    for seed in range(12):
        try:
            splits = csada.data.load(root, size=16, seed=seed)
        except InputError as error:
            assert "has images of eel but train has none" in str(error)
            found.add("train")
            continue
        empty = [part for part in PARTS if 2 not in getattr(splits, part).y]
        advice = "add some, or sort the images into train, valid and test folders yourself"
        assert splits.warnings == tuple(f"{root}: {part} has no image of eel; {advice}" for part in empty)
        found.update(empty)
    assert found == set(PARTS)


def test_ids_of_a_folder_are_those_of_its_files(tmp_path):
    write_folder(tmp_path / "a", {"cat": 20, "dog": 20})
    large, small = (csada.data.load(tmp_path / "a", size=size) for size in (16, 8))
    assert large.fingerprint == small.fingerprint
    (tmp_path / "a/cat/0.jpg").rename(tmp_path / "a/dog/renamed.jpg")
    assert csada.data.load(tmp_path / "a", size=16).fingerprint == large.fingerprint
    shutil.copytree(tmp_path / "a", tmp_path / "b/train")
    write_folder(tmp_path / "b/test", {"cat": 3})
    everything = csada.data.load(tmp_path / "b", size=16).ids
    assert csada.data.seen(large.ids.test, np.concatenate([everything.train, everything.validation])).all()


def test_files_are_hashed_once(tmp_path, monkeypatch):
    write_folder(tmp_path / "a", {"cat": 20, "dog": 20})
    first = csada.data.counts(tmp_path / "a")
    for path in (tmp_path / "a").glob("*/*"):  # other content, but neither size nor time tell
        stat = path.stat()
        path.write_bytes(bytes(stat.st_size))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert csada.data.counts(tmp_path / "a") == first


def test_folder_scaled_down_decodes_only_what_it_needs(tmp_path):
    write_folder(tmp_path, {"train/cat": 20, "train/dog": 20, "valid/cat": 10, "test/cat": 10})
    totals = []
    splits = csada.data.load(tmp_path, size=16, scale=0.1, on_progress=lambda done, total: totals.append(total))
    assert [counts(getattr(splits, part)) for part in PARTS] == [[2, 2], [1], [1]]
    assert totals == [6]
    assert [len(ids) for ids in splits.ids] == [4, 1, 1]


def test_corrupt_image_is_named_or_skipped(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "valid/cat": 2, "test/cat": 3})
    (tmp_path / "train/dog/2.jpg").write_bytes(jpeg(0)[:300])
    with pytest.raises(InputError, match=r"1 of 14 images .*train/dog/2\.jpg.*skip_bad"):
        csada.data.load(tmp_path, size=16)
    splits = csada.data.load(tmp_path, size=16, skip_bad=True)
    assert counts(splits.train) == [5, 3]
    assert len(splits.skipped) == 1
    assert splits.skipped[0].startswith("train/dog/2.jpg: ")
    expected = np.asarray(Image.open(tmp_path / "train/dog/3.jpg").crop((4, 0, 44, 40)).resize((16, 16), 2))
    np.testing.assert_array_equal(splits.train.x[-1], expected.transpose(2, 0, 1))


def announced(width, height):
    """A PNG file of nothing but its header."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def as_icon(png):
    """An icon of 16 pixels, by what it says of itself, around any other image."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png


TOO_LARGE = {
    "long": announced(100_000_000, 1),
    "high": announced(1, 100_000_000),
    "large": announced(134_217, 134_217),
    "icon": as_icon(announced(60_000, 60_000)),
}


def test_images_that_are_too_large_are_skipped_like_any_bad_one(tmp_path):
    photos, env = tmp_path / "photos", os.environ | {"PYTHONWARNINGS": "ignore"}
    write_folder(photos, {"train/cat": 5, "train/dog": 5, "valid/cat": 2, "test/cat": 3})
    for name, content in TOO_LARGE.items():
        (photos / "train" / "dog" / f"{name}.png").write_bytes(content)
    shown = program("data", "show", photos, "--skip-bad", "--json", env=env)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["samples"]["train"] == {"cat": 5, "dog": 5} and len(found["skipped"]) == len(TOO_LARGE)
    assert "train/dog/long.png: 100,000,000 x 1 pixels; at most 65,535 on a side" in found["skipped"][3]
    trained = program(
        "train", photos, "--skip-bad", "--model", "cnn", "--epochs", "1", "--out", tmp_path / "m", env=env
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr.count("left out: ") == len(TOO_LARGE)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({}, "holds no images"),
        ({"cat": 5, "dog": 0}, "class folder .*dog holds no images"),
        ({"cat": 5}, "single class cat"),
        ({"cat": 1, "dog": 1}, "too few images"),
        ({"train/cat": 2, "train/dog": 2, "test/cat": 1, "test/eel": 1}, "test has images of eel but train has none"),
        ({"train/cat": 2, "train/dog": 2}, "has no folder test"),
        ({"train/cat": 2, "train/dog": 2, "test": 0}, "test holds no images"),
    ],
)
def test_folders_that_cannot_be_learnt_from_are_named(tmp_path, folders, message):
    root = tmp_path / "pictures"
    root.mkdir()
    write_folder(root, folders)
    with pytest.raises(InputError, match=message):
        csada.data.load(root, size=16, validation=0.25)


def test_class_that_loses_all_its_images_is_named(tmp_path):
    write_folder(tmp_path, {"train/cat": 2, "train/dog": 1, "train/eel": 2, "valid/cat": 1, "test/dog": 1})
    (tmp_path / "train/dog/0.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match="test has images of dog but train has none"):
        csada.data.load(tmp_path, size=16, skip_bad=True)


# tables


def write_table(path, n=100):
    generator = np.random.default_rng(0)
    values = generator.normal((100, -3), (20, 0.1), (n, 2))
    lines = [f"{a:.6f},{b:.6f},0.1,{('low', 'high')[i % 2]}" for i, (a, b) in enumerate(values)]
    path.write_text("\n".join(["age,dose,constant,risk", *lines]) + "\n")
    return values


def test_table_is_split_and_standardised_by_its_training_part(tmp_path):
    write_table(tmp_path / "patients.csv")
    splits = csada.data.load("patients.csv", data_dir=tmp_path)
    assert (splits.name, splits.classes) == ("patients", ("high", "low"))
    for part, share in zip(PARTS, (0.6, 0.2, 0.2), strict=True):
        assert all(within(n, 50, share) for n in counts(getattr(splits, part)))
    assert len(set.union(*(rows(getattr(splits, part)) for part in PARTS))) == 100
    x = splits.train.batch(torch.arange(len(splits.train))).x
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_table_takes_another_label_column_and_sorts_numbers_by_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("grade,x\n" + "\n".join(f"{grade},{i}{grade}" for i in range(20) for grade in (9, 10, 1)))
    splits = csada.data.load(path, label="grade")
    assert splits.classes == ("1", "9", "10")
    assert splits.train.x.shape[1:] == (1,)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_change_to_a_table_moves_another_row(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    lines = [("a" if i % 2 else "b", f"{i / 8}", f"{i * i}") for i in range(60)]

    def parts(lines, order=(1, 2, 0), names=("risk", "age", "dose"), text=str):
        found = [[names[i] for i in order], *([text(line[i]) for i in order] for line in lines)]
        path.write_text("\n".join(map(",".join, found)))
        splits = csada.data.load(path, label=names[0])
        at = splits.columns.index("dose")
        return {float(x[at]): part for part in PARTS for x in getattr(splits, part).x}

    before = parts(lines)
    kept = data.draw(st.lists(st.sampled_from(lines), min_size=40, unique=True))
    fresh = [(label, "0.5", str(10_000 + i)) for i, label in enumerate(data.draw(st.lists(st.sampled_from("ab"))))]
    shuffled, order = data.draw(st.permutations(kept + fresh)), data.draw(st.permutations((0, 1, 2)))
    relabelled = [(data.draw(st.sampled_from("ab")), *line[1:]) for line in shuffled[:3]] + shuffled[3:]
    after = parts(relabelled, order, text=lambda cell: f"{cell}0" if "." in cell else f" {cell}")
    assert set(before) & set(after)
    assert {dose: part for dose, part in after.items() if dose in before} == {
        d: before[d] for d in after if d in before
    }


def test_rows_that_contradict_each_other_and_classes_without_rows_are_named(tmp_path):
    lines = [f"{i},{'ab'[i % 2]}" for i in range(80)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,y", *lines, "4,b", "5,a", "6,a"]))  # 4 and 5 with another label; 6 again
    assert csada.data.load(path).warnings == (
        f"{path}: the same numbers in two classes: line 6 and line 82, line 7 and line 83; keep the right ones",
    )
    path.write_text("\n".join(["x,y", *lines, "1000,c", "1001,c"]))
    found = set()
    for seed in range(12):
        try:
            splits = csada.data.load(path, seed=seed)
            lines = splits.warnings
            assert len(lines) == sum(2 not in getattr(splits, part).y for part in PARTS) > 0
        except InputError as error:
            lines = (str(error),)
        for line in lines:
            part = re.fullmatch(f"{path}: (.*) has no row of c; add some, or take these classes out", line)[1]
            found.add(part)
    assert found == set(PARTS)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])  # as pandas writes an index, and as it names it when it reads it
def test_an_index_written_by_pandas_is_no_feature(tmp_path, name):
    lines = [f"{100 + i},{i % 7}.{i},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join([f"{name},dose,risk", *lines]))
    splits = csada.data.load(tmp_path / "t.csv")
    assert splits.columns == ("dose",) and splits.train.x.shape[1] == 1
    assert [line for line in splits.warnings if "the first column is an index" in line]


def test_the_program_shows_what_is_odd(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join([",dose,risk", *(f"{i},{i}.5,{'ab'[i % 2]}" for i in range(40))]))
    for flags in ([], ["--json"]):
        program = [sys.executable, "-m", "csada", "data", "show", tmp_path / "t.csv", *flags]
        shown = subprocess.run(program, capture_output=True, text=True, check=True).stdout
        assert "the first column is an index and was left out" in shown


def test_a_column_without_a_name_elsewhere_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("dose,,risk\n1,2,a\n3,4,b\n")
    with pytest.raises(InputError, match="column 2 has no name; name it or remove it"):
        csada.data.load(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["1e39", "1_000", "0x10", "1,5"])
def test_training_and_predict_refuse_the_same_numbers(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(30)) + f'"{text}",x\n')
    with pytest.raises(InputError, match=f"line 32, column 'a': '{text}' is not a finite number"):
        csada.data.load(path)
    path.write_text(f'a,b\n"{text}",x\n')
    (row,) = predict(Model(("x", "y"), {"shape": (1,), "dtype": "float32", "columns": ["a"]}, caught), [path])
    assert f"line 2, column 'a': '{text}' is not a finite number" in row["error"]


def test_a_column_of_words_is_never_taken_for_the_label_without_being_asked(tmp_path):
    lines = [f"{'fm'[i % 2]},{i},{i % 3}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["sex,age,outcome", *lines]))
    with pytest.raises(InputError, match=r"column 'sex': 'f' is not a finite number.* label, make it the last one"):
        csada.data.load(tmp_path / "t.csv")
    assert csada.data.load(tmp_path / "t.csv", label="sex").columns == ("age", "outcome")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "labels of 0 class"),
        ("a;b\n1;2\n", "single column 'a;b'"),
        ("a,a,b\n1,2,3\n", "several columns named 'a'"),
        ("a,b\n1,x\n\n2,y,z\n", "line 4 has 3 values; the header has 2 columns"),
        ("a,b\n1,x\n\ntwo,y\n", "line 4, column 'a': 'two' is not a finite number"),
        ("a,b\n1,x\n,y\n", "line 3, column 'a': '' is not"),
        ("a,b\nnan,x\n1,y\n", "line 2, column 'a': 'nan' is not"),
        ("a,b\n1,x\n2,\n", "line 3 has no label in column 'b'"),
        ("a,b\n1,x\n2,x\n", "labels of 1 class"),
        ("a,b\n1,x\n2,y\n", "too few rows"),
    ],
)
def test_tables_that_cannot_be_read_name_the_place(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        csada.data.load(path)


def test_table_names_the_label_column_that_is_missing(tmp_path):
    write_table(tmp_path / "t.csv")
    with pytest.raises(InputError, match="no column 'rsik'; did you mean 'risk'"):
        csada.data.load(tmp_path / "t.csv", label="rsik")
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        csada.data.load(tmp_path / "t.csv")


# the real thing, where it lies on this machine

needs_mnist = pytest.mark.skipif(
    not (REAL and os.path.exists(f"{REAL}/mnist")), reason="CSADA_DATA does not name a folder with mnist"
)
needs_cifar = pytest.mark.skipif(
    not (REAL and any(name.startswith("cifar") for name in os.listdir(REAL))), reason="CSADA_DATA has no CIFAR-10"
)


@needs_mnist
def test_real_mnist():
    splits = csada.data.load("mnist", data_dir=REAL)
    assert [len(getattr(splits, part)) for part in PARTS] == [55_000, 5_000, 10_000]
    assert counts(splits.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert splits.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    x = splits.train.batch(torch.arange(10_000)).x
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02


@needs_cifar
def test_real_cifar10(monkeypatch):
    if REAL_CACHE:
        monkeypatch.setenv("CSADA_CACHE", REAL_CACHE)
    splits = csada.data.load("cifar10", data_dir=REAL)
    assert [len(getattr(splits, part)) for part in PARTS] == [45_000, 5_000, 10_000]
    assert [counts(getattr(splits, part)) for part in PARTS] == [[4500] * 10, [500] * 10, [1000] * 10]
    x = splits.train.batch(torch.arange(0, 45_000, 5)).x
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)


def test_a_data_set_saved_as_a_folder_is_read_back(tmp_path):
    pills = csada.data.load("pills", scale=0.005, size=32)

    saved = save(pills, tmp_path / "pills")
    again = csada.data.load(saved, size=pills.train.x.shape[-1])
    assert again.classes == tuple(sorted(pills.classes)) and not list(tmp_path.glob(".*"))
    for part in ("train", "validation", "test"):
        before, after = getattr(pills, part), getattr(again, part)
        pictures = lambda p, names: sorted((names[y], x.numpy().tobytes()) for x, y in zip(p.x, p.y, strict=True))  # noqa: E731
        assert pictures(before, pills.classes) == pictures(after, again.classes)
    with pytest.raises(InputError, match="there already"):
        save(pills, saved)
    with pytest.raises(InputError, match="no images"):
        save(csada.data.load("toy"), tmp_path / "toy")
