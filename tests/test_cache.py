"""The cache of decoded images: right pixels, never stale, never half written, whoever else writes at the same time."""

import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from csada.data.cache import decode_files
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


def test_full_disk_leaves_nothing_behind(photos, cache):
    root, names = photos
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # 20 x 3 x 64 x 64 bytes do not fit
    try:
        with pytest.raises(RunError, match="CSADA_CACHE"):
            decode_files(root, names, 64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(cache.glob("*"))
    assert len(decode_files(root, names, 64).images) == 20


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
    source = Path(__file__).parents[1] / "src"
    entries = []

    def run_another(done, total):
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run([sys.executable, "-c", script, str(root), *names], check=True, env=environment)
        entries.extend(cache.glob("*.npy"))

    decoded = decode_files(root, names, 16, run_another)
    assert len(entries) == 1  # the other one had finished
    assert sorted(path.suffix for path in cache.iterdir()) == [".npy", ".npz"]
    np.testing.assert_array_equal(decoded.images.numpy(), np.stack([by_hand(root / name, 16) for name in names]))
