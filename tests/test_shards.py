"""Images in tar shards: the same data set as a folder, never unpacked, and safe against shards of strangers."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from samples import jpeg, refused, write_folder
from test_cli import inside

import csada.data
from csada.data.cache import seal
from csada.data.shards import gathered
from csada.data.splits import PARTS
from csada.errors import InputError
from csada.sample import Sample
from csada.tars import reader, walk
from csada.workflow.predict import Model, predict

pytestmark = pytest.mark.usefixtures("own_folders")


def write(path, members):
    """{name: content}, or {name: [type]} for what is no plain file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                (info.type,), info.linkname = content, "/etc/passwd"
                tar.addfile(info)
    return path


def keyed(first, n):
    """Cats and dogs in turn, as WebDataset writes them."""
    found = {}
    for i in range(first, first + n):
        found |= {f"{i:06}.cls": ("cat", "dog")[i % 2].encode(), f"{i:06}.jpg": jpeg(i)}
    return found


def by_name(splits):
    return {name: part for part in PARTS for name in splits.parts[part].names}


def test_shards_hold_what_a_folder_holds(tmp_path):
    write_folder(tmp_path / "photos", {"cat": 20, "dog": 20})
    folder = csada.data.load(tmp_path / "photos", size=16)
    for k, label in enumerate(("cat", "dog")):
        files = sorted((tmp_path / "photos" / label).iterdir())
        write(tmp_path / f"a/p-{k}.tar", {f"./{label}/{file.name}": file.read_bytes() for file in files})
        cls = {f"{label}{i}.cls": label.encode() for i in range(len(files))}
        cls |= {f"{label}{i}.jpg": file.read_bytes() for i, file in enumerate(files)}
        write(tmp_path / f"b/p-{k}.tar", cls | {"notes.txt": b"", f"{label}0.mask.png": jpeg(9)})
    for place in ("a", "a/p-*.tar", "b", f"file://{tmp_path}/b/p-*.tar"):
        where = place if "://" in place else tmp_path / place
        splits = csada.data.load(where, size=16)
        assert splits.classes == folder.classes and splits.fingerprint == folder.fingerprint, place
        for part in PARTS:
            one, other = folder.parts[part], splits.parts[part]
            pixels = {key: x.numpy().tobytes() for key, x in zip(one.ids.tolist(), one.x, strict=True)}
            assert {key: x.numpy().tobytes() for key, x in zip(other.ids.tolist(), other.x, strict=True)} == pixels
        assert csada.data.counts(where) == csada.data.counts(tmp_path / "photos")
    assert not list(tmp_path.glob("a/*/")) and not list(tmp_path.glob("b/*/"))


@pytest.fixture
def remote():
    """fsspec's files in memory, and the requests for their content."""
    fsspec = pytest.importorskip("fsspec")
    memory, asked = fsspec.get_filesystem_class("memory"), []

    class Counted(memory):
        def cat_file(self, path, start=None, end=None, **options):
            asked.append((path, start, end))
            return super().cat_file(path, start, end, **options)

    fsspec.register_implementation("memory", Counted, clobber=True)
    files = Counted()
    yield files, asked
    files.rm("/photos", recursive=True)
    fsspec.register_implementation("memory", memory, clobber=True)


@pytest.mark.parametrize("in_memory", [True, False])
def test_neighbours_in_a_remote_shard_come_in_one_request(tmp_path, monkeypatch, remote, in_memory):
    files, asked = remote
    if not in_memory:
        monkeypatch.setattr("csada.data.images.IN_MEMORY", 0)
    for i in range(2):
        shard = write(tmp_path / f"s/p-{i}.tar", keyed(40 * i, 40))
        files.pipe(f"/photos/p-{i}.tar", shard.read_bytes())
    there = csada.data.load("memory://photos/p-*.tar", size=16)
    assert len(asked) <= 2 * (1 if in_memory else 3)  # of each shard a part at a time, where each part is a block
    here = csada.data.load(tmp_path / "s", size=16)
    for part in PARTS:
        assert there.parts[part].names == here.parts[part].names
        assert (there.parts[part].x == here.parts[part].x).all()


def test_blocks_of_a_remote_shard_hold_whole_images(tmp_path, remote):
    files, asked = remote
    shard = write(tmp_path / "p.tar", keyed(0, 40))
    files.pipe("/photos/p.tar", shard.read_bytes())
    here, there = reader(), reader(ahead=20_000)
    members = [member for member, _ in walk(str(shard), labels=False)]
    for member in [*members, members[-1], members[3]]:
        assert there("memory://photos/p.tar", member) == here(str(shard), member)
    assert len(asked) <= 8 and all(end - start == 20_000 for _, start, end in asked)


def test_a_remote_folder_is_one_of_shards(tmp_path, remote):
    files, _ = remote
    for part, first in (("train", 0), ("val", 30), ("test", 40)):
        files.pipe(f"/photos/{part}/p.tar", write(tmp_path / f"s/{part}/p.tar", keyed(first, 10)).read_bytes())
    splits = csada.data.load("memory://photos", size=16)
    assert splits.fingerprint == csada.data.load(tmp_path / "s", size=16).fingerprint
    cats = write(tmp_path / "cats.tar", {f"cat/{i}.jpg": jpeg(i) for i in range(9)})
    files.pipe("/photos/cats/p.tar", cats.read_bytes())
    refused("memory://photos/cats has the single class cat", "memory://photos/cats")
    files.pipe("/photos/images/a.jpg", jpeg(0))
    refused("there is no file memory://photos/images; give a tar file, a folder of them", "memory://photos/images")


def test_a_remote_shard_that_goes_away_while_it_is_read_is_named(tmp_path, remote):
    files, _ = remote
    files.pipe("/photos/p.tar", write(tmp_path / "p.tar", keyed(0, 10)).read_bytes())
    files.pipe("/photos/other.txt", b"")
    found = gathered("memory://photos")
    files.rm("/photos/p.tar")
    with pytest.raises(InputError, match=r"000000\.jpg cannot be read: .*/photos/p\.tar"):
        found.decode(list(found.where), 16, None)


def test_a_new_shard_moves_no_image(tmp_path):
    write(tmp_path / "s/p-0.tar", keyed(0, 60))
    before = by_name(csada.data.load(tmp_path / "s", size=16))
    write(tmp_path / "s/p-1.tar", keyed(60, 60))
    after = by_name(csada.data.load(tmp_path / "s", size=16))
    assert len(after) == 120 and {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "content", [b"\x8e", b"[", b"7", b"[[[1]], 0]", b'[[["a", 0, 0, 1e999]], ""]', b'[[["a", 0, 9, 1]], ""]']
)
def test_a_cached_index_that_is_something_else_is_made_again(tmp_path, content):
    """Under its right hash, bytes that are no text were a traceback."""
    write(tmp_path / "s.tar", keyed(0, 20))
    before = by_name(csada.data.load(tmp_path / "s.tar", size=16))
    (index,) = Path(os.environ["CSADA_CACHE"]).rglob("*.ids")
    seal(index, content)
    assert by_name(csada.data.load(tmp_path / "s.tar", size=16)) == before
    assert index.read_bytes()[32:] != content


def test_parts_that_are_given_stay(tmp_path):
    for part, first in (("train", 0), ("val", 30), ("test", 40)):
        write(tmp_path / f"s/{part}/p.tar", keyed(first, 10))
    splits = csada.data.load(tmp_path / "s", size=16)
    assert [len(part) for part in splits.parts.values()] == [10, 10, 10]
    assert splits.train.names[0] == "train/cat/p.tar:000000.jpg"


@pytest.mark.parametrize("where", ["in an image", "in a header", "between files", "in the end mark"])
def test_a_shard_that_is_cut_off_is_named_and_used_up_to_there_if_asked(tmp_path, where):
    write(tmp_path / "s/p-0.tar", keyed(0, 60))
    shard = write(tmp_path / "s/p-1.tar", keyed(60, 20))
    with tarfile.open(shard) as tar:
        last = tar.getmembers()[-1]
    end = -(-(last.offset_data + last.size) // 512) * 512
    cut = {"in an image": last.offset_data + 9, "in a header": last.offset + 100}
    os.truncate(shard, cut.get(where, last.offset if where == "between files" else end))
    refused(r"p-1\.tar is cut off after \d+ files; copy it again, or .*--skip-bad", tmp_path / "s", size=16)
    splits = csada.data.load(tmp_path / "s", size=16, skip_bad=True)
    left = 20 if where == "in the end mark" else 19
    assert sum(map(len, splits.parts.values())) == 60 + left
    assert splits.skipped == (f"p-1.tar: cut off; the {left} images before the cut are used",)
    shown = inside("data", "show", tmp_path / "s", "--skip-bad")
    assert shown.returncode == 0 and "cut off" in shown.stderr
    shown = inside("data", "show", tmp_path / "s")
    assert shown.returncode == 2 and shown.stderr.count("\n") == 1 and "p-1.tar is cut off" in shown.stderr


def test_an_image_whose_class_is_behind_the_cut_is_left_out(tmp_path):
    write(tmp_path / "s/p-0.tar", keyed(0, 60))
    shard = write(tmp_path / "s/p-1.tar", {"000060.jpg": jpeg(60), "000060.cls": b"cat"})
    with tarfile.open(shard) as tar:
        os.truncate(shard, tar.getmembers()[-1].offset)
    splits = csada.data.load(tmp_path / "s", size=16, skip_bad=True)
    assert sum(map(len, splits.parts.values())) == 60
    assert splits.skipped == ("p-1.tar: cut off; the 0 images before the cut are used",)


def test_links_and_devices_are_passed_over(tmp_path):
    odd = {"cat/link.jpg": [tarfile.SYMTYPE], "cat/hard.jpg": [tarfile.LNKTYPE], "dog/null.jpg": [tarfile.CHRTYPE]}
    write(tmp_path / "p.tar", keyed(0, 60) | odd | {"../../cat/x.jpg": jpeg(7)})
    names = by_name(csada.data.load(tmp_path / "p.tar", size=16))
    assert len(names) == 61 and not any("link" in name or "hard" in name or "null" in name for name in names)
    assert not (tmp_path.parent / "cat").exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.jpg": b"x"}, "1.jpg has no class; add 1.cls"),
        ({"1.jpg": b"x", "1.cls": b"a/b"}, "the class of 1.jpg is 'a/b'"),
        ({"1.jpg": b"x", "1.cls": b"\x1b[31m"}, "the class of 1.jpg"),
        ({"1.cls": bytes(100_000)}, "100,000 bytes; at most 65,536"),
        ({"a.txt": b"nothing"}, "holds no images"),
    ],
)
def test_shards_that_cannot_be_used_are_named(tmp_path, members, message):
    refused(message, write(tmp_path / "p.tar", members), size=16)


def test_bounds_hold_for_shards(tmp_path, monkeypatch):
    path = write(tmp_path / "p.tar", keyed(0, 20))
    monkeypatch.setenv("CSADA_BOUNDS", "members=10")
    refused("has 11 files; at most 10 are read", path, size=16)
    monkeypatch.setenv("CSADA_BOUNDS", "image=100")
    refused("at most 100 are read", path, size=16)


def test_what_is_no_shard_is_refused(tmp_path):
    (tmp_path / "p.tar").write_bytes(b"no tar file at all" * 100)
    refused("p.tar is no tar file", tmp_path / "p.tar", size=16)
    refused("there is no file", str(tmp_path / "q-*.tar"), size=16)
    refused("cannot be read", f"file://{tmp_path}/none.tar", size=16)
    refused("cannot be read", "nowhere://x/none.tar", size=16)


def test_predict_reads_the_images_of_a_shard(tmp_path):
    shard = write(tmp_path / "p.tar", {"a.jpg": jpeg(1), "a.cls": b"cat", "b.jpg": b"broken", "c.jpg": jpeg(2)})
    given = []

    def decide(x, words=None):
        given.append(np.asarray(x))
        n = len(x)
        return np.zeros(n, int), np.ones(n), np.zeros(n), np.zeros(n, bool)

    model = Model(("cat", "dog"), Sample((3, 16, 16), "uint8"), decide)
    rows = list(predict(model, [shard]))
    assert sum(map(len, given)) == 2
    assert [row["file"] for row in rows] == [f"{shard}:{name}.jpg" for name in "abc"]
    assert ["error" in row for row in rows] == [False, True, False]


def test_parts_of_a_large_set_stay_on_the_disk(tmp_path, monkeypatch):
    write(tmp_path / "p.tar", keyed(0, 60))
    small = csada.data.load(tmp_path / "p.tar", size=16)
    monkeypatch.setattr("csada.data.images.IN_MEMORY", 0)
    large = csada.data.load(tmp_path / "p.tar", size=16)
    assert len({part.x.untyped_storage().data_ptr() for part in large.parts.values()}) == 1  # one map
    assert len({part.x.untyped_storage().data_ptr() for part in small.parts.values()}) == 3
    for part in PARTS:
        assert (small.parts[part].x == large.parts[part].x).all() and small.parts[part].names == large.parts[part].names


def test_the_cache_is_bounded_by_an_option(tmp_path):
    write(tmp_path / "p.tar", keyed(0, 60))
    shown = inside("data", "show", tmp_path / "p.tar", "--cache-gb", "1e-6")
    assert shown.returncode == 1 and "--cache-gb" in shown.stderr and shown.stderr.count("\n") == 1
    assert inside("data", "show", tmp_path / "p.tar", "--cache-gb", "1").returncode == 0
