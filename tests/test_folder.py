"""Folders of images: by part and class, or by class alone; whole, broken, and as they change."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import TOO_LARGE, Caught, caught, counts, jpeg, refused, rows, within, write_folder
from test_cli import inside

import csada.data
from csada.data.folder import listed, save
from csada.data.pmi import CLASSES, FOLDERS
from csada.data.splits import PARTS
from csada.errors import InputError
from csada.sample import Sample
from csada.workflow.predict import Model, predict

pytestmark = pytest.mark.usefixtures("own_folders")


def test_folder_with_parts_keeps_them(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "val/cat": 2, "val/dog": 1, "test/cat": 3, "test/dog": 3})
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    (tmp_path / "train/.hidden").mkdir()
    splits = csada.data.load(tmp_path, size=16)
    assert splits.classes == ("cat", "dog")
    assert [counts(part) for part in splits.parts.values()] == [[5, 4], [2, 1], [3, 3]]
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
        given = splits.parts[part]
        model = Model(splits.classes, Sample((3, side, side), "uint8"), caught)
        with pytest.raises(Caught) as seen:
            list(predict(model, [root / folder], batch_size=len(given)))
        x = torch.from_numpy(seen.value.args[0])
        assert torch.equal(given.batch(torch.arange(len(given))).x, given.normalization(x))


@pytest.mark.parametrize("name", ["dev", "val", "valid", "validation"])
def test_the_validation_folder_has_several_names(tmp_path, name):
    root = tmp_path / "photos"
    write_folder(root, {f"{part}/{label}": 2 for part in ("train", name, "test") for label in ("cat", "dog")})
    splits = csada.data.load(root, size=16)
    assert [counts(part) for part in splits.parts.values()] == [[2, 2]] * 3 and splits.warnings == ()
    write_folder(root, {"holdout/cat": 1})
    (line,) = csada.data.load(root, size=16).warnings
    assert line == f"{root}: left out holdout, which is neither train, test nor validation"
    write_folder(root, {("val" if name != "val" else "dev") + "/cat": 1})
    refused(r"has several validation folders: .*; keep one", root, size=16)


def test_folder_is_normalised_by_its_training_part_and_stays_on_the_disk(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "valid/cat": 2, "test/cat": 3})
    splits = csada.data.load(tmp_path, size=16)
    assert splits.warnings == tuple(f"{tmp_path}: {part} has no image of dog; add some" for part in PARTS[1:])
    x = splits.train.batch(torch.arange(9)).x
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert splits.test.normalization == splits.train.normalization
    assert len({part.x.untyped_storage().data_ptr() for part in splits.parts.values()}) == 1  # views of one mapped file


def test_folder_without_validation_cuts_it_from_train(tmp_path):
    write_folder(tmp_path, {"train/cat": 40, "train/dog": 50, "test/cat": 3, "test/dog": 3})
    splits = csada.data.load(tmp_path, size=16, validation=0.3)
    assert (len(splits.train) + len(splits.validation), counts(splits.test)) == (90, [3, 3])
    assert all(within(n, total, 0.3) for n, total in zip(counts(splits.validation), (40, 50), strict=True))
    assert not rows(splits.train) & rows(splits.validation)
    refused("validation=20; give a fraction between 0 and 1", tmp_path, validation=20)


def test_folder_of_classes_is_split_by_seed(tmp_path):
    root = tmp_path / "pets"
    write_folder(root, {"cat": 20, "dog": 25})
    splits = csada.data.load(root, size=16)
    assert len(set.union(*(rows(splits.parts[part]) for part in PARTS))) == 45
    assert rows(csada.data.load(root, size=16, seed=1).test) != rows(splits.test)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1  # every seed reads the same decoded images
    told = {part: dict(zip(splits.classes, counts(splits.parts[part]), strict=True)) for part in PARTS}
    assert csada.data.counts(root) == told
    small = csada.data.load(root, size=16, scale=0.3)
    for part in PARTS:
        assert rows(small.parts[part]) < rows(splits.parts[part])


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
        empty = [part for part in PARTS if 2 not in splits.parts[part].y]
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
    assert [counts(part) for part in splits.parts.values()] == [[2, 2], [1], [1]]
    assert totals == [6]
    assert [len(ids) for ids in splits.ids] == [4, 1, 1]


def test_corrupt_image_is_named_or_skipped_unless_its_class_has_no_other(tmp_path):
    write_folder(tmp_path, {"train/cat": 5, "train/dog": 4, "valid/cat": 2, "test/cat": 3})
    (tmp_path / "train/dog/2.jpg").write_bytes(jpeg(0)[:300])
    refused(r"1 of 14 images .*train/dog/2\.jpg.*skip_bad", tmp_path, size=16)
    splits = csada.data.load(tmp_path, size=16, skip_bad=True)
    assert counts(splits.train) == [5, 3]
    assert len(splits.skipped) == 1
    assert splits.skipped[0].startswith("train/dog/2.jpg: ")
    expected = np.asarray(Image.open(tmp_path / "train/dog/3.jpg").crop((4, 0, 44, 40)).resize((16, 16), 2))
    np.testing.assert_array_equal(splits.train.x[-1], expected.transpose(2, 0, 1))
    for path in (tmp_path / "train/dog").glob("*"):
        path.write_bytes(b"no image")
    write_folder(tmp_path, {"train/eel": 2, "test/dog": 1})
    refused("test has images of dog but train has none", tmp_path, size=16, skip_bad=True)


@pytest.mark.filterwarnings("ignore")  # Pillow's own, which the program does not show
def test_images_that_are_too_large_are_skipped_like_any_bad_one(tmp_path):
    photos = tmp_path / "photos"
    write_folder(photos, {"train/cat": 5, "train/dog": 5, "valid/cat": 2, "test/cat": 3})
    for name, content in TOO_LARGE.items():
        (photos / "train" / "dog" / f"{name}.png").write_bytes(content)
    shown = inside("data", "show", photos, "--skip-bad", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["samples"]["train"] == {"cat": 5, "dog": 5} and len(found["skipped"]) == len(TOO_LARGE)
    assert "long.png: 100,000,000 x 1 pixels; the longer side counts; at most 65,535 are read" in found["skipped"][3]
    trained = inside("train", photos, "--skip-bad", "--model", "cnn", "--epochs", "1", "--out", tmp_path / "m")
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
    refused(message, root, size=16, validation=0.25)


def test_a_data_set_saved_as_a_folder_is_read_back(tmp_path):
    pills = csada.data.load("pills", scale=0.005, size=32)
    saved = save(pills, tmp_path / "pills")
    again = csada.data.load(saved, size=pills.train.x.shape[-1])
    assert again.classes == tuple(sorted(pills.classes)) and not list(tmp_path.glob(".*"))
    pictures = [
        [
            sorted((each.classes[y], x.numpy().tobytes()) for x, y in zip(part.x, part.y, strict=True))
            for part in each.parts.values()
        ]
        for each in (pills, again)
    ]
    assert pictures[0] == pictures[1]
    with pytest.raises(InputError, match="there already"):
        save(pills, saved)
    with pytest.raises(InputError, match="no images"):
        save(csada.data.load("toy"), tmp_path / "toy")
