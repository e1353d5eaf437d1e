"""The cache of decoded images: right pixels, never stale, never half written, whoever else writes at the same time."""

import copy
import io
import os
import pickle
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from csada.data.cache import decode_files
from csada.data.splits import Part
from csada.errors import InputError, RunError
from csada.pixels import square


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("CSADA_CACHE", str(folder))
    return folder


@pytest.fixture
def photos(tmp_path):
    """Twenty pictures of assorted shapes, modes and formats, and their names."""
    root = tmp_path / "photos"
    root.mkdir()
    names = []
    for i in range(20):
        pixels = np.random.default_rng(i).integers(0, 256, (5, 7, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize((40 + 13 * (i % 4), 60), Image.Resampling.BICUBIC)
        name = f"{i:02}.{('jpg', 'png')[i % 2]}"
        picture.convert(("RGB", "L")[i % 3 == 0]).save(root / name)
        names.append(name)
    return root, names


def by_hand(path, size):
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def test_pixels_are_those_that_pillow_decodes(photos):
    root, names = photos
    decoded = decode_files(root, names, 32)
    assert decoded.names == tuple(names)
    assert decoded.skipped == ()
    np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 32) for name in names]))


def saved(image, format="PNG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


LEVELS = np.array([[0, 257], [32896, 65535]], np.uint16)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("format", ["PNG", "TIFF", "PGM"])
def test_sixteen_bits_become_eight_without_clipping(format, channels):
    encoded = (
        b"P5 2 2 65535\n" + LEVELS.astype(">u2").tobytes()
        if format == "PGM"
        else saved(Image.fromarray(LEVELS), format)
    )
    expected = np.broadcast_to([[0, 1], [128, 255]], (channels, 2, 2))
    np.testing.assert_array_equal(square(encoded, 2, channels), expected)


@pytest.mark.parametrize("pixels", [np.full((2, 2), 0.5, np.float32), np.full((2, 2), 70000, np.int32)])
def test_pixels_without_a_known_scale_are_refused(pixels):
    with pytest.raises(InputError, match="8 or 16 bits"):
        square(saved(Image.fromarray(pixels), "TIFF"), 2)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode):
    rgba = np.zeros((2, 2, 4), np.uint8)  # black, and transparent on the left
    rgba[:, 1, 3] = 255
    if mode == "P":
        encoded = saved(Image.fromarray(rgba[:, :, 3] // 255).convert("P"), transparency=0)
    else:
        encoded = saved(Image.fromarray(rgba).convert(mode))
    for channels in (1, 3):
        left, right = square(encoded, 2, channels)[:, 0].T
        assert left.tolist() == [255] * channels and right.max() <= 1


def test_half_transparent_is_half_white():
    assert square(saved(Image.new("RGBA", (2, 2), (200, 0, 0, 51))), 2)[:, 0, 0].tolist() == [244, 204, 204]


def test_second_reading_decodes_nothing_and_gives_the_same(photos):
    root, names = photos
    calls = []
    first = decode_files(root, names, 16, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (20, 20)
    again = decode_files(root, names, 16, lambda done, total: pytest.fail("decoded again"))
    np.testing.assert_array_equal(first.images.numpy(), again.images.numpy())
    np.testing.assert_array_equal(first.moments, again.moments)


def test_changed_picture_or_size_is_decoded_anew(photos):
    root, names = photos
    before = decode_files(root, names, 16).images.clone()
    assert decode_files(root, names, 8).images.shape == (20, 3, 8, 8)
    Image.new("RGB", (50, 50), (255, 0, 0)).save(root / names[3])
    after = decode_files(root, names, 16).images
    assert after[3, 0].min() > 250
    assert after[3, 1].max() < 5
    assert (after[4:] == before[4:]).all()


def test_training_on_cached_pixels_cannot_change_the_file(photos):
    root, names = photos
    decode_files(root, names, 16).images.zero_()
    assert decode_files(root, names, 16).images.any()


def test_channel_statistics_are_those_of_the_pixels(photos):
    root, names = photos
    decoded = decode_files(root, names, 16)
    rows = np.array([1, 4, 5])
    mean, std = decoded.channel_statistics(rows)
    pixels = decoded.images[rows].numpy() / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_constant_images_have_usable_statistics(tmp_path):
    Image.new("RGB", (8, 8), (255, 0, 7)).save(tmp_path / "a.png")
    _, std = decode_files(tmp_path, ["a.png"], 8).channel_statistics(np.array([0]))
    assert std == (1.0, 1.0, 1.0)


def test_broken_image_is_left_out_and_named(photos):
    root, names = photos
    whole = (root / names[4]).read_bytes()
    (root / names[4]).write_bytes(whole[: len(whole) // 2])
    (root / names[7]).write_bytes(b"not a picture")
    for _ in range(2):  # built, then read back
        decoded = decode_files(root, names, 16)
        good = [name for i, name in enumerate(names) if i not in (4, 7)]
        assert decoded.names == tuple(good)
        assert [reason.split(":")[0] for reason in decoded.skipped] == [names[4], names[7]]
        np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 16) for name in good]))


def test_folder_of_broken_images_is_still_an_answer(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    decoded = decode_files(tmp_path, ["a.jpg"], 16)
    assert (decoded.images.shape, decoded.names) == ((0, 3, 16, 16), ())
    assert decoded.skipped[0].startswith("a.jpg: ")


@pytest.mark.parametrize("kind", ["folder", "dangling link", "device", "pipe"])
def test_what_cannot_be_read_is_an_error_that_names_it(photos, cache, kind):
    root, names = photos
    (root / names[2]).unlink()
    if kind == "folder":
        (root / names[2]).mkdir()
    elif kind == "pipe":
        os.mkfifo(root / names[2])
    else:
        (root / names[2]).symlink_to("/dev/full" if kind == "device" else root / "nowhere.jpg")
    with pytest.raises(InputError, match=names[2]):
        decode_files(root, names, 16)
    assert not list(cache.glob("*"))


def test_full_disk_keeps_whole_pieces_and_says_so(photos, cache, monkeypatch):
    root, names = photos
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # 20 x 3 x 64 x 64 bytes do not fit
    try:
        with pytest.raises(RunError, match="CSADA_CACHE"):
            decode_files(root, names, 64)
        assert not list(cache.glob("*"))  # not one piece was whole
        monkeypatch.setattr("csada.data.cache.PIECE", 4 * 3 * 64**2)
        with pytest.raises(RunError, match="8 of 20 are done and kept"):
            decode_files(root, names, 64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    calls = []
    decoded = decode_files(root, names, 64, lambda done, total: calls.append(done))
    assert calls == [12, 16, 20]
    np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 64) for name in names]))
    assert sorted(path.suffix for path in cache.iterdir()) == [".npy", ".npz"]


def test_too_little_space_is_told_before_the_work(photos, monkeypatch):
    root, names = photos
    usage = shutil.disk_usage(root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RunError, match="0 MB are free; they need 4 MB there"):
        decode_files(root, names, 256, lambda done, total: pytest.fail("decoded"))


BUILD = """
import os, signal, sys, pathlib, csada.data.cache as c
c.PIECE = 4 * 3 * 16**2
def stop(done, total):
    if done >= 8:
        os.kill(os.getpid(), signal.SIGKILL)
c.decode_files(pathlib.Path(sys.argv[1]), sys.argv[2:], 16, stop)
"""


def with_source():
    """The environment of a process that runs this csada."""
    source = Path(__file__).parents[1] / "src"
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(source), os.environ["PYTHONPATH"]))}


@pytest.mark.parametrize("damage", ["none", "half a piece", "half a line", "lost pixels", "nonsense"])
def test_a_build_that_was_killed_goes_on_where_it_was(photos, cache, monkeypatch, damage):
    root, names = photos
    (root / names[2]).write_bytes(b"no picture")
    killed = subprocess.run([sys.executable, "-c", BUILD, str(root), *names], env=with_source())
    assert killed.returncode == -9
    (half,), (pieces,) = cache.glob("*.half"), cache.glob("*.pieces")
    known = {"none": 8, "half a piece": 8, "half a line": 8, "lost pixels": 4, "nonsense": 0}[damage]
    if damage == "half a piece":
        half.write_bytes(half.read_bytes() + b"more pixels")
    elif damage == "half a line":
        pieces.write_bytes(pieces.read_bytes() + b"0123")
    elif damage == "lost pixels":
        os.truncate(half, half.stat().st_size - 1)
    elif damage == "nonsense":
        pieces.write_bytes(b"[1, 2, 3]\n")
    calls = []
    monkeypatch.setattr("csada.data.cache.PIECE", 4 * 3 * 16**2)
    decoded = decode_files(root, names, 16, lambda done, total: calls.append(done))
    assert calls == list(range(known + 4, 21, 4))
    good = [name for name in names if name != names[2]]
    assert decoded.names == tuple(good) and decoded.skipped[0].startswith(names[2])
    np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 16) for name in good]))
    moments = np.stack([decoded.images.numpy().sum((2, 3)), (decoded.images.numpy().astype(int) ** 2).sum((2, 3))], 1)
    np.testing.assert_array_equal(decoded.moments, moments)
    assert sorted(path.suffix for path in cache.iterdir()) == [".npy", ".npz"]


def test_a_bounded_cache_gives_up_what_was_used_longest_ago_but_nothing_in_use(photos, cache, monkeypatch):
    root, names = photos
    one = 20 * 3 * 16**2

    def known():
        return sorted(path.name for path in cache.glob("*.npy"))

    monkeypatch.setenv("CSADA_CACHE_GB", str(2.9 * one / 1e9))  # room for two and their indices
    decode_files(root, names, 16)
    first = known()
    os.utime(cache / first[0], (1, 1))
    decode_files(root, names[:19], 16)
    second = [name for name in known() if name not in first]
    os.utime(cache / second[0], (2, 2))
    (cache / "mine.npy").write_bytes(b"a file of somebody else")
    decode_files(root, names, 16)  # used again
    held = decode_files(root, names[:18], 16)
    third = [name for name in known() if name not in (*first, *second, "mine.npy")]
    assert set(known()) == {*first, *third, "mine.npy"}
    monkeypatch.setenv("CSADA_CACHE_GB", str(1.5 * one / 1e9))
    with pytest.raises(RunError, match="are in use; allow more"):  # the first goes; the third is held
        decode_files(root, names[:17], 16)
    assert known() == sorted([*third, "mine.npy"])
    del held
    decode_files(root, names[:17], 16)
    assert not {*first, *third} & set(known())
    with pytest.raises(RunError, match="more than the cache may hold"):
        decode_files(root, names, 64)
    for wrong in ("-1", "many", "nan"):
        monkeypatch.setenv("CSADA_CACHE_GB", wrong)
        with pytest.raises(InputError, match="--cache-gb"):
            decode_files(root, names, 32)


def test_cache_folder_that_cannot_be_made_is_an_error(photos, cache):
    root, names = photos
    cache.write_text("a file in the way")
    with pytest.raises(RunError, match=str(cache)):
        decode_files(root, names, 16)


def test_damaged_entry_is_built_again(photos, cache):
    root, names = photos
    decode_files(root, names, 16)
    (pixels,) = cache.glob("*.npy")
    os.truncate(pixels, 1000)
    assert len(decode_files(root, names, 16).images) == 20
    (index,) = cache.glob("*.npz")
    for damaged in (index.read_bytes()[:-50], b"nonsense", b""):
        index.write_bytes(damaged)
        assert len(decode_files(root, names, 16).images) == 20


def test_two_processes_may_build_at_once(photos, cache):
    """The other process starts and ends while this one is half way."""
    root, names = photos
    script = "import sys, pathlib, csada.data.cache as c; c.decode_files(pathlib.Path(sys.argv[1]), sys.argv[2:], 16)"
    entries = []

    def run_another(done, total):
        subprocess.run([sys.executable, "-c", script, str(root), *names], check=True, env=with_source())
        entries.extend(cache.glob("*.npy"))

    decoded = decode_files(root, names, 16, run_another)
    assert len(entries) == 1  # the other one had finished
    assert sorted(path.suffix for path in cache.iterdir()) == [".npy", ".npz"]
    np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 16) for name in names]))


LOADED = "import pickle, sys; x = pickle.load(sys.stdin.buffer).x; sys.stdout.buffer.write(x.numpy().tobytes())"


def read_elsewhere(pickled):
    return subprocess.run([sys.executable, "-c", LOADED], input=pickled, capture_output=True, env=with_source())


def test_mapped_samples_are_pickled_as_the_name_of_their_file(photos, cache):
    images = decode_files(*photos, 32).images
    part = Part(images[3:9], torch.zeros(6, dtype=torch.long))
    pickled = pickle.dumps(part)
    assert len(pickled) < 4000 < part.x.nbytes == 6 * 3 * 32**2
    elsewhere = read_elsewhere(pickled)
    assert elsewhere.stdout == part.x.numpy().tobytes() == copy.copy(part).x.numpy().tobytes(), elsewhere.stderr
    every_other = replace(part, x=part.x.flip(0), y=part.y)  # no longer a view of the file
    assert torch.equal(copy.deepcopy(every_other).x, every_other.x)
    part.x[2] = 7  # in memory, and not in the file
    changed = pickle.dumps(part)
    assert read_elsewhere(changed).stdout == part.x.numpy().tobytes() and len(changed) < part.x.nbytes + 4000
    (file,) = cache.glob("*.npy")
    file.unlink()
    told = read_elsewhere(pickled).stderr.decode().splitlines()[-1]
    assert "RunError" in told and str(file) in told and "CSADA_CACHE" in told


def test_a_view_is_pickled_without_the_rest_of_its_tensor():
    samples = torch.arange(3_000_000, dtype=torch.uint8).reshape(1000, 3000)
    part = Part(samples[10:20], torch.arange(1000)[10:20])
    pickled = pickle.dumps(part)
    found = pickle.loads(pickled)  # noqa: S301 - we wrote it
    assert len(pickled) < 10 * 3000 + 4000
    assert torch.equal(found.x, part.x) and torch.equal(found.y, part.y) and found.normalization == part.normalization


TRY = "import sys; from csada.data.store import lock; print(lock(open(sys.argv[1], 'ab')))"


@pytest.mark.parametrize("bounded", [True, False])
def test_one_builder_at_a_time_fills_a_bounded_cache(photos, cache, monkeypatch, bounded):
    """Or two would each fill the room that is left."""
    root, names = photos
    mark, free = cache / ".building", []

    def another(done, total):
        tried = subprocess.run(
            [sys.executable, "-c", TRY, str(mark)], env=with_source(), text=True, capture_output=True
        )
        free.append((tried.stdout or tried.stderr).strip())

    if bounded:
        monkeypatch.setenv("CSADA_CACHE_GB", "1")
    decode_files(root, names, 16, another)
    another(0, 0)
    assert free == ["False" if bounded else "True", "True"]


BUILD_ANOTHER = """
import sys, pathlib, csada.data.cache as c
print("ready", flush=True)
c.decode_files(pathlib.Path(sys.argv[1]), sys.argv[2:], 16)
"""


def test_builders_of_different_entries_do_not_exceed_the_bound(photos, cache, monkeypatch):
    root, names = photos
    monkeypatch.setenv("CSADA_CACHE_GB", str(1.5 * 20 * 3 * 16**2 / 1e9))  # room for one and its index
    monkeypatch.setattr("csada.data.cache.PIECE", 4 * 3 * 16**2)
    others = []

    def start_another(done, total):
        if not others:
            command = [sys.executable, "-c", BUILD_ANOTHER, str(root), *names[:19]]
            others.append(subprocess.Popen(command, env=with_source(), text=True, stdout=subprocess.PIPE))
            assert others[0].stdout.readline() == "ready\n"

    mine = decode_files(root, names, 16, start_another)
    assert len(mine.images) == 20
    del mine
    others[0].communicate()  # it came first or last; it may also find that this one's entry is still in use
    assert len(list(cache.glob("*.npy"))) == 1
