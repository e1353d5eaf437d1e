"""Drawn pill bottles: the paper's classes and sizes, the same picture from the same seed, cached once."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from csada.data import pills
from csada.data.pmi import CLASSES, PRODUCTS, pmi_costs
from csada.data.splits import PARTS, Splits
from csada.errors import InputError, RunError

EASY = pills.Conditions(imprint=(1.0, 1.0), blank=0.0, distance=0.0, blur=(0.0, 0.0), noise=(0.0, 0.0))
BY_NDC = {product.ndc: product for product in PRODUCTS}


class Loaded(NamedTuple):
    splits: Splits
    cache: Path
    progress: list[tuple[int, int]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    cache, progress = tmp_path_factory.mktemp("pills"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CSADA_CACHE", str(cache))
        splits = pills.load(scale=0.005, size=56, on_progress=lambda done, total: progress.append((done, total)))
    return Loaded(splits, cache, progress)


@pytest.fixture
def splits(loaded: Loaded) -> Splits:
    return loaded.splits


def picture(ndc: str, number: int = 0, conditions: pills.Conditions = EASY) -> np.ndarray:
    return pills.draw(BY_NDC[ndc], np.random.default_rng([7, number]), conditions)


def middle(image: np.ndarray) -> np.ndarray:
    return image[:, 88:168, 88:168].reshape(3, -1)


def test_splits_have_the_papers_classes_and_a_few_pictures_of_each(splits) -> None:
    assert splits.classes == CLASSES
    assert torch.bincount(splits.test.y).tolist() == [3] * 20
    assert splits.train.x.shape == (60, 3, 56, 56) and splits.train.x.dtype == torch.uint8


def test_scale_keeps_the_papers_imbalance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path))
    drawn = {}

    def skip(path: Path, jobs: list[pills.Job], *_: object) -> list[int]:
        drawn[jobs[0].part] = np.bincount([job.label for job in jobs])
        np.save(path, np.resize(np.arange(256, dtype=np.uint8), (len(jobs), 3, 16, 16)))
        return []

    monkeypatch.setattr(pills, "_written", skip)  # numbers only: drawing a tenth of the set takes half a minute
    pills.load(scale=0.1, size=16)
    for part in PARTS:
        assert drawn[part].tolist() == [max(3, round(getattr(p, part) * 0.1)) for p in PRODUCTS]


def test_a_batch_is_what_a_model_takes(splits) -> None:
    batch = splits.train.batch(torch.arange(60), generator=torch.Generator().manual_seed(0))
    assert batch.x.shape == (60, 3, 56, 56)
    plain = splits.train.batch(torch.arange(60)).x
    assert plain.mean((0, 2, 3)).abs().max() < 0.05 and (plain.std((0, 2, 3)) - 1).abs().max() < 0.05


def test_a_picture_does_not_depend_on_what_else_is_drawn(splits) -> None:
    conditions = pills.Conditions()
    alone = pills.draw_many([pills.Job(0, "test", 19, 2)], 56, conditions)[0]
    np.testing.assert_array_equal(splits.test.x[19 * 3 + 2].numpy(), alone)
    other_seed, other_part, other_number = pills.draw_many(
        [pills.Job(1, "test", 19, 2), pills.Job(0, "train", 19, 2), pills.Job(0, "test", 19, 1)], 56, conditions
    )
    for other in (other_seed, other_part, other_number):
        assert np.abs(alone.astype(int) - other).mean() > 5


def test_workers_draw_what_one_process_draws_even_for_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from csada.data import pills\n"
        "pills.CHUNK = 2\n"  # workers start for a handful of pictures
        "jobs = [pills.Job(0, 'train', 8, n) for n in range(16)]\n"
        "np.save(sys.argv[1], np.concatenate(list(pills._in_parallel(jobs, 32, pills.Conditions()))))\n"
    )
    subprocess.run([sys.executable, "-W", "error", script, tmp_path / "x.npy"], check=True, timeout=300)
    alone = pills.draw_many([pills.Job(0, "train", 8, n) for n in range(16)], 32, pills.Conditions())
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), alone)


def test_the_second_load_draws_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    done, totals = zip(*loaded.progress, strict=True)
    assert done[-1] == 180 and set(totals) == {180} and list(done) == sorted(done)
    assert len(list(loaded.cache.iterdir())) == 3 and not list(loaded.cache.glob("*.tmp"))
    monkeypatch.setenv("CSADA_CACHE", str(loaded.cache))
    seen: list[int] = []
    again = pills.load(scale=0.005, size=56, on_progress=lambda done, _: seen.append(done))
    assert not seen and torch.equal(loaded.splits.train.x, again.train.x)


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match="CSADA_CACHE"):
        pills.load(scale=0.005, size=16)


def test_colours_are_those_of_the_table() -> None:
    def colour(ndc: str) -> np.ndarray:
        pixels = np.concatenate([middle(picture(ndc, n)) for n in range(4)], axis=1)
        return pixels.mean(1) / pixels.mean()

    white, brown, orange, yellow = map(colour, ("53489-0156", "64380-0803", "65162-0253", "67253-0901"))
    assert white.max() - white.min() < 0.25
    assert yellow[0] > yellow[2] + 0.3 and yellow[1] > yellow[2] + 0.2
    assert orange[0] > orange[1] + 0.3 > orange[2] + 0.4
    assert white[0] + 0.1 < brown[0] < orange[0]


@pytest.mark.parametrize("product", PRODUCTS, ids=CLASSES)
def test_a_pill_lying_flat_has_its_size_in_millimetres(product) -> None:
    # the longest extent of a pose is the pill's length, more only where its side shows
    extents = []
    for stamp in pills.bank(product, 2):
        y, x = np.nonzero(stamp.mask)
        turned = [np.ptp(x * np.cos(t) + y * np.sin(t)) for t in np.linspace(0, np.pi, 60)]
        extents.append(max(turned) / pills.PIXELS_PER_MM)
    assert min(extents) == pytest.approx(product.size, rel=0.06)


def test_the_imprint_is_drawn_and_a_blank_pill_has_none() -> None:
    front, back, blank = (pills.bank(BY_NDC["00591-0461"], face) for face in range(3))
    engraved = [np.mean([(s.surface[..., 2] * s.mask).mean() for s in face]) for face in (front, back, blank)]
    assert min(engraved[:2]) > 0.01 and engraved[2] == 0
    assert pills.faces(BY_NDC["00591-0461"]) == (("Watson",), ("461",))
    assert pills.faces(BY_NDC["69315-0905"]) == (("EP", "905"), ("1",))
    assert pills.faces(BY_NDC["57664-0377"]) == (("377",), ())


@pytest.mark.parametrize(("truth", "predicted"), pmi_costs().top_pairs(4))
def test_nothing_but_the_imprint_always_tells_a_critical_pair_apart(truth: int, predicted: int) -> None:
    first, second = PRODUCTS[truth], PRODUCTS[predicted]
    for look in ("shape", "colour", "scored", "dome", "gloss"):
        assert getattr(first, look) == getattr(second, look)
    nearer, farther = 1 + pills.Conditions().distance, 1 - pills.Conditions().distance
    assert max(first.size, second.size) * farther < min(first.size, second.size) * nearer


def test_conditions_do_what_they_say() -> None:
    quiet, noisy = (picture("00378-0208", 1, replace(EASY, noise=(n, n))) for n in (0.0, 12.0))
    assert np.std(noisy.astype(int) - quiet) == pytest.approx(10, abs=2.5)  # resizing averages some of it away
    sharp, soft = (picture("00378-0208", 1, replace(EASY, blur=(b, b))) for b in (0.0, 3.0))
    assert np.abs(np.diff(soft.astype(int))).mean() < 0.7 * np.abs(np.diff(sharp.astype(int))).mean()
    clear, faint = (picture("00378-0208", 1, replace(EASY, imprint=(i, i))) for i in (1.0, 0.0))
    assert np.abs(clear.astype(int) - faint).mean() > 0.5


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"scale": 0}, "scale"),
        ({"seed": -1}, "seed"),
        ({"size": 4}, "size"),
        ({"imprint": (1.0, 0.5)}, "imprint"),
        ({"blur": 1.0}, "blur"),
        ({"noise": (-1.0, 2.0)}, "noise"),
        ({"blank": 1.5}, "blank"),
        ({"distance": 0.4}, "distance"),
    ],
)
def test_impossible_wishes_are_refused(options: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        pills.load(**options)


def test_some_products_are_drawn_alone_under_the_names_given(tmp_path, monkeypatch, loaded) -> None:
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path))
    some = pills.load(scale=0.005, size=56, classes=["trazodone", "00591-0461"])
    assert some.classes == ("00591-0461", "trazodone")  # in the order of the products
    label = torch.tensor([CLASSES.index("00591-0461"), CLASSES.index("50111-0434")])
    every = loaded.splits.test
    assert torch.equal(some.test.x, every.x[torch.isin(every.y, label)]) and some.test.y.tolist() == [0] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (["trazodone", "amlodipine"], "'amlodipine' may be 69097-0127 .*; write more of the name, or the code"),
        (["Trazadone", "glipizide"], "no product is named 'Trazadone'; did you mean 'trazodone'"),
        (["trazodone", "50111-0434"], "are the same product; keep one"),
        (["trazodone"], "two classes or more, got 1"),
    ],
)
def test_a_product_that_is_not_clear_is_refused(classes, told) -> None:
    with pytest.raises(InputError, match=told):
        pills.load(scale=0.005, classes=classes)
