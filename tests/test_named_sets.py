"""The data sets with a name, from small files made by hand, whole and broken; and the real ones where they lie."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from samples import REAL, REAL_CACHE, counts, in_memory_of, jpeg, refused, rows, sizes, write_folder
from sklearn.datasets import load_digits
from test_cli import csada as program

import csada.data
from csada.data import Augmentation
from csada.data.splits import PARTS
from csada.errors import InputError

pytestmark = pytest.mark.usefixtures("own_folders")


def test_unknown_names_and_options_are_named_with_a_way_out():
    refused("did you mean 'mnist'", "minst")
    refused(r"'spraed'.*did you mean 'spread'", "toy", spraed=1)
    refused("'size' for mnist; known: validation", "mnist", size=3)


@pytest.mark.parametrize("layout", ["", "train/"])
def test_a_folder_with_the_name_of_a_data_set_is_not_passed_over(tmp_path, monkeypatch, layout):
    parts = [layout, "test/"] if layout else [""]
    write_folder(tmp_path / "digits", {f"{part}{name}": 15 for part in parts for name in ("cat", "dog")})
    refused(r"'digits' .*write .*/digits for the folder, builtin:digits for the data set", "digits", data_dir=tmp_path)
    monkeypatch.chdir(tmp_path)
    for load in (csada.data.load, csada.data.counts):
        with pytest.raises(InputError, match=r"write \./digits for the folder, builtin:digits for the data set"):
            load("digits")
    assert csada.data.load("./digits", size=16).classes == ("cat", "dog")
    assert list(csada.data.counts("./digits")["train"]) == ["cat", "dog"]
    assert csada.data.load("builtin:digits").name == "digits"
    assert list(csada.data.counts("builtin:digits")["train"]) == list("0123456789")
    refused("builtin:cats", "builtin:cats")


def test_where_a_data_set_lies_is_no_folder_of_images(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert csada.data.load("mnist", data_dir=tmp_path, validation=10).name == "MNIST"


def test_digits_are_those_of_scikit_learn_in_a_seeded_stratified_split():
    splits = csada.data.load("digits", seed=1)
    digits = load_digits()
    together = torch.cat([splits.parts[part].x for part in PARTS])
    assert together.shape == (1797, 1, 8, 8)
    by_pixels = sorted(together.flatten(1).tolist())
    assert by_pixels == sorted(digits.data.astype(int).tolist())  # each once: the parts are disjoint
    for part, share in zip(PARTS, (0.6, 0.2, 0.2), strict=True):
        expected = np.bincount(digits.target) * share
        assert np.all(np.abs(np.array(counts(splits.parts[part])) - expected) <= 1)
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
        assert len(tenth.parts[part]) == round(len(whole.parts[part]) / 10)
        assert rows(tenth.parts[part]) <= rows(whole.parts[part])
        assert min(counts(tenth.parts[part])) >= 3


def test_toy_has_the_means_and_covariances_of_the_paper():
    splits = csada.data.load("toy", spread=1)
    assert [counts(part) for part in splits.parts.values()] == [[50] * 3, [500] * 3, [500] * 3]
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
    refused("spread", "toy", spread=0)


# MNIST


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=40, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (train + 20, 28, 28))
    labels = np.arange(train + 20) % 10
    for prefix, chosen in (("train", slice(train)), ("t10k", slice(train, None))):
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            raw, name = idx(values[chosen]), f"{prefix}-{kind}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
    return images, labels


@pytest.mark.parametrize("inner", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_reads_the_standard_files_wherever_they_usually_lie(tmp_path, inner, packed):
    images, labels = write_mnist(tmp_path / inner, packed=packed)
    splits = csada.data.load("mnist", data_dir=tmp_path, validation=10)
    assert splits.name == "MNIST"
    assert sizes(splits) == [30, 10, 20]
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
    refused(f"(?s){tmp_path}.*{file}.*csada data fetch {name}", name, data_dir=tmp_path)


def repacked(change):
    return lambda raw: gzip.compress(change(gzip.decompress(raw)))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("images-idx3", lambda raw: raw[: len(raw) // 2], "is damaged"),
        ("images-idx3", repacked(lambda raw: b"\0\0\x0d\x03" + raw[4:]), "begins with 00 00 0d 03"),
        ("images-idx3", repacked(lambda raw: raw[:-1]), "announces 20 x 28 x 28 values but holds 15,679"),
        ("images-idx3", lambda raw: b"", "begins with"),
        ("images-idx3", repacked(lambda raw: b"\0\0\x08\x03" + b"\xff" * 12), "announces"),
        ("labels-idx1", repacked(lambda raw: idx(np.zeros(19))), "has 19 labels for the 20 images"),
        ("labels-idx1", repacked(lambda raw: idx(np.full(20, 10))), "has the label 10"),
    ],
)
def test_damaged_mnist_files_are_named(tmp_path, file, damage, message):
    write_mnist(tmp_path)
    path = tmp_path / f"t10k-{file}-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    refused(f"{path} {message}", "mnist", data_dir=tmp_path, validation=10)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((20, 28, 28), "announces 20 x 28 x 28 values but holds more"), ((2000,) * 3, "announces .* at most 268,4")],
)
def test_no_more_is_unpacked_of_mnist_than_its_header_announces(tmp_path, shape, message):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + np.array(shape, ">u4").tobytes() + bytes(100_000_000), 1))
    with in_memory_of(10_000_000):
        refused(f"{path} {message}", "mnist", data_dir=tmp_path, validation=10)


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


def write_cifar(root, changes=(), write=lambda batch: as_old(pickle.dumps(batch, protocol=2))):
    """The folder with its batches; the contents of those in `changes` are given."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in (cifar_batches() | dict(changes)).items():
        (folder / name).write_bytes(batch if isinstance(batch, bytes) else write(batch))
    return folder


def pack_cifar(root, folder):
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
    return archive


@pytest.mark.parametrize("rewrite", [as_old, as_new])
@pytest.mark.parametrize("layout", ["folder", "the folder itself", "archive"])
def test_cifar10_reads_folder_and_archive_of_any_numpy(tmp_path, layout, rewrite):
    batches = cifar_batches()
    folder = write_cifar(tmp_path / "unpacked", write=lambda batch: rewrite(pickle.dumps(batch, protocol=2)))
    pack_cifar(tmp_path, folder)
    where = {"folder": folder.parent, "the folder itself": folder, "archive": tmp_path}[layout]
    splits = csada.data.load("cifar10", data_dir=where, validation=0.2)
    assert splits.name == "CIFAR-10"
    assert sizes(splits) == [40, 10, 10]
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
    write_cifar(tmp_path, write=write)
    splits = csada.data.load("cifar10", data_dir=tmp_path, validation=0.2)
    np.testing.assert_array_equal(splits.test.x.flatten(1), batches["test_batch"][b"data"])
    assert splits.test.y.tolist() == list(range(10))


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_pickle_that_would_run_code_is_refused(tmp_path):
    mark = tmp_path / "it-ran"
    for evil in (Evil(os.system, f"touch {mark}"), Evil(eval, f"open({str(mark)!r}, 'w')"), Evil(np.save, mark, [1])):
        write_cifar(tmp_path, {"data_batch_3": {b"data": evil}})
        refused(r"data_batch_3 asks for .*no part of CIFAR-10", "cifar10", data_dir=tmp_path)
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
    write_cifar(tmp_path, {"test_batch": batch})
    refused(f"test_batch .*{message}", "cifar10", data_dir=tmp_path)


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
    write_cifar(tmp_path, {"data_batch_1": hidden_pointers()})
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
    write_cifar(tmp_path, {"test_batch": raw})
    with in_memory_of(100_000_000), pytest.raises(InputError, match=r"test_batch (is damaged|does not hold)") as error:
        csada.data.load("cifar10", data_dir=tmp_path)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
@pytest.mark.parametrize("target", ["data_batch_1", "nowhere"])
def test_only_plain_files_are_read_from_an_archive(tmp_path, kind, target):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.type, member.linkname = kind, f"cifar-10-batches-py/{target}"
        tar.addfile(member)
    refused(f"{archive} holds .*data_batch_1', which is no plain file", "cifar10", data_dir=tmp_path)


def test_an_archive_that_unpacks_to_more_than_any_cifar10_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CSADA_BOUNDS", "archive=50000")
    pack_cifar(tmp_path, write_cifar(tmp_path / "files", {"data_batch_1": bytes(100_000)}))
    refused("unpacks to more bytes than CIFAR-10; at most 50,000 are read", "cifar10", data_dir=tmp_path)


def test_broken_cifar10_files_are_named(tmp_path):
    folder = write_cifar(tmp_path / "a")
    batch = folder / "data_batch_2"
    batch.write_bytes(batch.read_bytes()[:500])
    refused("data_batch_2 is damaged", "cifar10", data_dir=folder.parent)
    batch.unlink()
    refused("data_batch_2 cannot be read: No such file", "cifar10", data_dir=folder.parent)
    archive = pack_cifar(tmp_path, folder)
    refused(f"{archive} has no data_batch_2", "cifar10", data_dir=tmp_path)
    archive.write_bytes(archive.read_bytes()[:-2000])
    refused(f"{archive} is damaged", "cifar10", data_dir=tmp_path)


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
        assert sizes(splits) == [16, 4, 6]
        assert splits.test.y.tolist() == [0, 0, 0, 5, 5, 5]
        expected = np.asarray(Image.open(io.BytesIO(files["test/dog/0001.jpg"]))).transpose(2, 0, 1)
        np.testing.assert_array_equal(splits.test.x[4], expected)


def test_broken_jpeg_archives_are_named(tmp_path):
    path = tmp_path / "cifar10-jpeg.tar.xz"
    write_jpeg_archive(path, {"train/unicorn/0000.jpg": jpeg(0)})
    refused(r"train/unicorn/0000\.jpg", "cifar10", data_dir=tmp_path)
    write_jpeg_archive(path, {"train/dog/0000.jpg": jpeg(0), "test/dog/0001.jpg": jpeg(1)[:200]})
    refused(r"test/dog/0001\.jpg", "cifar10", data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    refused(f"{path} is damaged", "cifar10", data_dir=tmp_path)


# the real thing, where it lies on this machine


def needs(name):
    there = REAL and any(file.startswith(name) for file in os.listdir(REAL))
    return pytest.mark.skipif(not there, reason=f"CSADA_DATA names no folder with {name}")


@needs("mnist")
def test_real_mnist():
    splits = csada.data.load("mnist", data_dir=REAL)
    assert sizes(splits) == [55_000, 5_000, 10_000]
    assert counts(splits.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert splits.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    x = splits.train.batch(torch.arange(10_000)).x
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02


@needs("cifar")
def test_real_cifar10(monkeypatch):
    if REAL_CACHE:
        monkeypatch.setenv("CSADA_CACHE", REAL_CACHE)
    splits = csada.data.load("cifar10", data_dir=REAL)
    assert sizes(splits) == [45_000, 5_000, 10_000]
    assert [counts(part) for part in splits.parts.values()] == [[4500] * 10, [500] * 10, [1000] * 10]
    x = splits.train.batch(torch.arange(0, 45_000, 5)).x
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)
