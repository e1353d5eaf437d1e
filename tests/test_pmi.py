"""The PMI release and its mirror, read from small folders and files of the same layout."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples import refused, sizes

from csada.data import load
from csada.data.pmi import CLASSES, PRODUCTS, pmi_costs, read_parquet
from csada.data.splits import PARTS
from csada.errors import InputError
from csada.report.examples import examples_figure

PER_PART = {"train": 3, "valid": 2, "test": 1}


pytestmark = pytest.mark.usefixtures("own_folders")


def frame(label: int, number: int) -> Image.Image:
    """A wide frame whose middle square has the class as its red level; the sides are blue."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[..., 2] = 255
    pixels[:, 8:56] = (10 * label, 10 * number, 0)
    return Image.fromarray(pixels)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for part, count in PER_PART.items():
        for label, ndc in enumerate(CLASSES):
            folder = tmp_path / "data" / "NLM20" / part / ndc
            folder.mkdir(parents=True)
            for number in range(count):
                frame(label, number).save(folder / f"{number}.png")
    return tmp_path / "data"


def test_the_table_adds_up_to_the_papers_sizes() -> None:
    assert len(PRODUCTS) == 20 and sorted(CLASSES) == list(CLASSES)
    sizes = [sum(getattr(p, part) for p in PRODUCTS) for part in PARTS]
    assert sizes == [8393, 2776, 2786] and sum(sizes) == 13_955


def test_costs_are_the_pharmacists() -> None:
    costs = pmi_costs()
    assert costs.classes == CLASSES
    assert costs["50111-0434", "00591-0461"] == 10 and costs["00591-0461", "50111-0434"] == 1
    assert costs["53489-0156", "68382-0227"] == 10 and costs["68382-0227", "53489-0156"] == 8
    assert costs["53746-0544", "00378-0208"] == 10
    assert costs.values.sum() == 20 * 19 - 4 + 38


def test_a_release_is_read_with_the_papers_preparation(release: Path) -> None:
    splits = load("pmi", data_dir=release)
    assert splits.fingerprint == load("pmi", data_dir=release / "NLM20").fingerprint  # the folder itself may be named
    assert splits.classes == CLASSES
    assert sizes(splits) == [60, 40, 20]
    assert splits.train.x.shape[1:] == (3, 224, 224)
    assert splits.train.y.tolist() == [k for k in range(20) for _ in range(3)]
    for part in splits.parts.values():
        pixels = part.x.float()
        assert torch.equal(pixels[:, 0, 112, 112], 10.0 * part.y)
        assert pixels[:, 2].max() == 0  # nothing of the blue sides
    assert splits.train.augmentation.zoom == (0.8, 1.0) and splits.train.augmentation.right_angles
    assert splits.test.augmentation.zoom is None
    x = splits.test.batch(torch.tensor([19])).x
    assert x.shape == (1, 3, 224, 224)
    expected = (190 / 255 - 0.4923) / 0.1905
    torch.testing.assert_close(x[0, 0, 0, 0], torch.tensor(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("source", "message"), [("folder", "6d56zw997.*hub.*pills"), ("hubb", "did you mean 'hub'")])
def test_missing_pictures_and_an_unknown_source_are_named_with_a_way_out(tmp_path: Path, source, message) -> None:
    refused(message, "pmi", data_dir=tmp_path, source=source)


def test_an_incomplete_release_is_refused(release: Path) -> None:
    (release / "NLM20" / "valid" / CLASSES[4] / "0.png").unlink()
    (release / "NLM20" / "valid" / CLASSES[4] / "1.png").unlink()
    refused(rf"'valid' has no pictures of 1 of the 20 products \({CLASSES[4]}", "pmi", data_dir=release)


def test_a_strange_folder_and_a_broken_picture_are_named(release: Path) -> None:
    broken = release / "NLM20" / "test" / CLASSES[0] / "broken.jpg"
    broken.write_bytes(b"no picture")
    refused(r"broken\.jpg", "pmi", data_dir=release)
    broken.unlink()
    strange = release / "NLM20" / "test" / "00378-0209"
    strange.mkdir()
    frame(0, 0).save(strange / "0.png")
    refused(r"did you mean '00378-0208'", "pmi", data_dir=release)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, which reads the mirror, is not installed")
    from pyarrow import parquet

    folder = tmp_path / "mirror"
    folder.mkdir()
    for part, count in (("train", 3), ("validation", 2), ("test", 1)):
        rows = []
        for number in range(count):
            for label, ndc in enumerate(CLASSES):
                buffer = io.BytesIO()
                frame(label, number).save(buffer, "PNG")
                rows.append({"image": {"bytes": buffer.getvalue(), "path": "x.png"}, "ndc": ndc, "id": number})
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet", row_group_size=7)
    return folder


def test_the_mirror_is_read_from_parquet(mirror: Path) -> None:
    splits = load("pmi", data_dir=mirror, source="hub")
    assert sizes(splits) == [60, 40, 20]
    for part in splits.parts.values():
        assert torch.equal(part.x[:, 0, 112, 112].long(), 10 * part.y)
    # numbers came in the order of the rows, across row groups
    assert splits.train.x[:, 1, 112, 112].tolist() == [10 * number for number in range(3) for _ in range(20)]
    assert read_parquet(sorted(mirror.glob("*.parquet"))).skipped == ()


def test_examples_figure_shows_each_picture_under_its_caption() -> None:
    images = [np.full((3, 8, 8), 40 * k, np.uint8) for k in range(5)]
    figure = examples_figure(images, [f"product {k}" for k in range(5)])
    shown = [axis for axis in figure.axes if axis.images]
    assert len(shown) == 5 and len(figure.axes) == 8
    for k, axis in enumerate(shown):
        assert axis.texts[0].get_text() == f"({'abcde'[k]}) product {k}"
        assert np.all(axis.images[0].get_array() == 40 * k)
    figure.savefig(io.BytesIO(), format="png")
    with pytest.raises(InputError, match="2 captions"):
        examples_figure(images, ["a", "b"])


def test_the_figure_does_not_wait_for_torch() -> None:
    program = "import sys, csada.report.examples; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
