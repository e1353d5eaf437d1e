"""What the attacks of a method do to a model, and the pictures of a report."""

import numpy as np
import pytest
import torch
from PIL import Image

import csada
from csada.data.images import load
from csada.methods import METHODS
from csada.workflow.fit import improve
from csada.workflow.probe import Probe, mistakes, pictures


@pytest.fixture(scope="module")
def digits():
    splits = csada.data.load("digits")
    start = csada.models.create("cnn", 10, channels=1, size=8)
    return splits, csada.fit(start, splits, "cross_entropy", epochs=8, lr=0.05, batch_size=64).model


def test_the_probe_attacks_the_costliest_pairs_as_the_method_does(digits):
    splits, model = digits
    costs = csada.CostMatrix.from_pairs(splits.classes, {("1", "7"): 20, ("3", "8"): 10}, default=0)
    method = METHODS["csada"](costs, step_size=0.1)
    probe = Probe.of(method, splits.train)
    found = probe(model)
    assert [(line.truth, line.predicted) for line in found] == [(1, 7), (3, 8)]  # the others cost nothing
    one = found[0]
    assert one.skipped + one.rejected + one.reached + one.exhausted == 5  # of 1,078: a look must not take long
    batch = splits.train.batch(probe.sample[probe.number == 0])
    by_hand = csada.attack(model, batch.x, batch.y, 7, step_size=0.1)
    assert int((by_hand.outcome == csada.Outcome.REACHED).sum()) == one.reached and (batch.y == 1).all()
    assert Probe.of(method, splits.train)(model) == found  # the same samples after every epoch
    assert Probe.of(METHODS["penalty"](costs), splits.train) is None
    assert Probe.of(METHODS["csada"](csada.CostMatrix.uniform(10, 0)), splits.train) is None


def test_examples_are_pictures_of_what_training_uses(digits):
    splits, model = digits
    costs = csada.CostMatrix.pareto(10, seed=1)
    found = Probe.of(METHODS["csada"](costs, step_size=0.1, epsilon=0.3), splits.train).examples(model)
    assert found["original_images"].shape == found["adversarial_images"].shape == (12, 8, 8, 3)
    assert [tuple(pair) for pair in found["examples"][::2].tolist()] == costs.top_pairs(6)
    assert (found["perturbations"][:, 0] <= 0.3 * 0.376 * 255 + 1e-3).all() and (found["perturbations"] > 0).all()
    away = np.abs(found["adversarial_images"].astype(int) - found["original_images"]).max((1, 2, 3))
    assert (away <= found["perturbations"][:, 0] + 1).all() and away.max() > 5


def test_pictures_are_the_pixels_and_mistakes_come_costliest_first(digits):
    splits, _ = digits
    shown = pictures(splits.test.batch(torch.arange(3)).x, splits.test.normalization)
    assert np.array_equal(shown[..., 0], np.round(splits.test.x[:3, 0].numpy() * (255 / 16)).astype(np.uint8))
    costs = csada.CostMatrix.pareto(10, seed=1)
    predicted = np.roll(splits.test.y.numpy(), 1)
    predicted[:5] = -1  # left to a person: no mistakes
    found = mistakes(splits.test, predicted, costs)
    paid = [costs.values[y, z] for _, y, z in found["mistakes"]]
    assert len(paid) == 24 and paid == sorted(paid, reverse=True) and found["mistakes"][:, 0].min() >= 5
    index, truth, called = found["mistakes"][0]
    assert truth == int(splits.test.y[index]) and called == predicted[index] and found["mistake_images"].shape[0] == 24


@pytest.mark.filterwarnings("ignore:the true class scores no higher")  # it learnt nothing
def test_mistakes_in_a_folder_of_images_keep_the_names_of_their_files(tmp_path):
    colours = np.random.default_rng(0).integers(256, size=(2, 40, 8, 8, 3), dtype=np.uint8)
    for label, images in zip(("a", "b"), colours, strict=True):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "photos" / label / f"{label} {i}.png")
    splits = load(tmp_path / "photos", size=8)
    start = csada.Classifier.of(csada.models.create("cnn", 2, channels=3, size=8), splits, architecture="cnn")
    found = improve(start, splits, csada.CostMatrix([[0, 1], [5, 0]], ("a", "b")), options={"epochs": 0}).evidence
    assert len(found.mistaken) == len(found.arrays["mistakes"]) > 0
    for name, image, (_, truth, _) in zip(
        found.mistaken, found.arrays["mistake_images"], found.arrays["mistakes"], strict=True
    ):
        assert name.startswith(f"{'ab'[truth]}/") and np.array_equal(Image.open(tmp_path / "photos" / name), image)
