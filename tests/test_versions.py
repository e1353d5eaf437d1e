"""New versions of a classifier: other class frequencies, what changed, and which decisions differ."""

import json
from dataclasses import replace

import numpy as np
import pytest
from browser import chromium
from made import HOSTILE
from test_cli import inside, refused

from csada import Classifier, CostMatrix, data
from csada.decisions import Decision
from csada.report.difference import Changed, difference_page
from csada.workflow.fit import improve
from csada.workflow.train import train
from csada.workflow.versions import Difference, frequencies_of, read_priors, reweighted

COSTS = CostMatrix([[0, 1, 8], [2, 0, 1], [1, 4, 0]], "abc")
OFTEN = np.array([0.1, 0.1, 0.8])


def drawn(frequencies, n, seed):
    """Samples of three overlapping classes: the densities are known, so the probabilities at equal frequencies are exact."""
    draw = np.random.default_rng(seed)
    labels = draw.choice(3, n, p=frequencies)
    x = draw.normal(size=(n, 2)) + 1.2 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    distance = ((x[:, None] - 1.2 * np.array([[0, 0], [1, 0], [0, 1]])) ** 2).sum(2)
    return -distance / 2, labels


def test_the_estimate_at_other_frequencies_is_what_happens_there():
    equal = np.full(3, 1 / 3)
    rules = [Decision(strength=1.0), Decision(strength=1.0, priors=tuple((OFTEN / equal).tolist()))]

    def found(drawn_at, seed, **more):
        logits, labels = drawn(drawn_at, 20_000, seed)
        return Difference.of([(rule, logits) for rule in rules], [COSTS, COSTS], labels, **more)

    estimate, truth = found(equal, 0, frequencies=OFTEN), found(OFTEN, 1)
    for guessed, paid in zip(estimate.paid, truth.paid, strict=True):
        assert guessed.mean() == pytest.approx(paid.mean(), rel=0.08)
    assert estimate.change.high < 0 and truth.change.high < 0  # the rule for these frequencies is cheaper there,
    assert found(equal, 0).change.low > 0  # and costs more elsewhere
    assert sum(n for *_, n in estimate.moves) == len(estimate.changed) == int((estimate.old != estimate.new).sum())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("versions")
    base = train(data.load("digits"), "cnn", epochs=2)
    base.save(place / "base")
    better = improve(
        base, data.load("digits"), CostMatrix.pareto(10, seed=0).ordered(base.classes), "csada", {"epochs": 0}
    )
    better.save(place / "one")
    lines = [f"{name},{0.55 if name == '3' else 0.05}" for name in base.classes]
    (place / "priors.csv").write_text("\n".join(["class,frequency", *lines]))
    words = ("digits", "--costs", "pareto:0", "--priors", place / "priors.csv")
    for old, new in (("one", "two"), ("two", "three")):
        run = inside("fit", place / old, *words, "--out", place / new)
        assert run.returncode == 0, run.stderr
    return place


def test_a_version_says_what_changed_and_keeps_what_was_said_before(folder):
    assert not (folder / "one" / "CHANGES.md").exists()
    second, third = ((folder / name / "CHANGES.md").read_text() for name in ("two", "three"))
    made = f"Made from one ({Classifier.load(folder / 'one').fingerprint}). Why: csada fit --costs pareto:0 --priors priors.csv"
    assert "3 55 %" in second and made in second
    assert "At the frequencies of deployment" in second and str(folder) not in second
    assert third.startswith(second.rstrip()) and third.count("\n## ") == 2 and "Made from two" in third
    assert "at the data's own" in (folder / "two" / "README.md").read_text()


def test_the_new_version_decides_by_the_new_frequencies_and_the_old_one_is_unchanged(folder):
    one, two = (Classifier.load(folder / name) for name in ("one", "two"))
    splits = data.load("digits")
    ratio = read_priors(folder / "priors.csv", one.classes) / frequencies_of(splits)
    assert one.decision.priors is None and two.decision.priors == pytest.approx(ratio)
    p = two.decision.automatic(two.costs).probabilities(two.logits(splits.test.x))
    q = Decision(two.decision.temperature, two.decision.scaling).automatic(two.costs)
    q = q.probabilities(two.logits(splits.test.x)) * ratio
    assert p == pytest.approx(q / q.sum(1, keepdims=True))
    assert inside("report", folder / "two").returncode == 0
    again = reweighted(two, OFTEN.repeat(10)[:10] / OFTEN.repeat(10)[:10].sum(), np.full(10, 0.1))
    assert again.evidence.decision == again.decision
    said = refused("fit", folder / "one", "digits", "--costs", "uniform", "--priors", folder / "priors.csv",
                   "--out", folder / "one")  # fmt: skip
    assert "new version" in said


def test_diff_counts_and_shows_what_changes_hands(folder, tmp_path):
    run = inside("diff", folder / "base", folder / "two", "digits", "--json", "--out", tmp_path / "diff.html")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    base, two, test = *(Classifier.load(folder / name) for name in ("base", "two")), data.load("digits").test
    old, new = base.predict(test.x), two.predict(test.x)
    moved = [(base.classes[a], base.classes[b]) for a, b in zip(old, new, strict=True) if a != b]
    assert told["changed"] == len(moved) > 3 and told["samples"] == len(test)
    assert {(m["old"], m["new"], m["samples"]) for m in told["moves"]} == {(*m, moved.count(m)) for m in moved}
    assert told["accuracy"]["new"] == pytest.approx((new == test.y.numpy()).mean())
    with chromium() as browser:
        page = browser.new_page()
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.goto((tmp_path / "diff.html").as_uri())
        assert page.locator(".cards li").count() == min(len(moved), 48) == page.locator(".cards img").count()
        widths = page.eval_on_selector_all(".cards img", "all => all.map(i => i.naturalWidth)")
        assert set(widths) == {8} and not problems
    assert inside("diff", folder / "two", folder / "two", "digits").stdout.startswith("0 of")


def test_names_in_the_page_are_text():
    card = Changed(HOSTILE[3], HOSTILE[0], HOSTILE[1], HOSTILE[2])
    page = difference_page(HOSTILE[3], HOSTILE[0], [(HOSTILE[0], HOSTILE[8], 1)], [(HOSTILE[0], "1", "2")], [card] * 50)
    assert "<script" not in page and "<img" not in page and "2 more are not shown" in page and "{{ 7 * 7 }}" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class,frequency\na,0.5\nb,0.5", "lacks c"),
        ("class,frequency\na,0.5\nb,0.5\nc,0.5", "sums to 1.5"),
        ("class,frequency\na,1\nb,-1\nc,1", "line 3: frequency is -1"),
        ("class,frequency\na,1\na,0\nc,0", "line 3: class 'a' is there already"),
        ("class,frequency\na,1\nx,0\nc,0", "line 3: class 'x' is unknown"),
        ("class,frequency\na,1\nb,x\nc,0", "line 3, column 'frequency': 'x'"),
        ("class,odds\na,1", "the columns class, odds"),
        ("class,count,count\na,1,2\nb,1,2\nc,1,2", "several columns named 'count'"),
        ("class,frequency\na,1\nb\nc,0", "line 3 has 1 values; the header has 2 columns"),
        ("class,count\na,0\nb,0\nc,0", "sums to 0"),
    ],
)
def test_frequencies_that_cannot_be_used_are_named(tmp_path, text, said):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(ValueError, match=r"p\.csv") as error:
        read_priors(tmp_path / "p.csv", "abc")
    assert said in str(error.value)


def test_counts_are_frequencies_too(tmp_path):
    (tmp_path / "p.csv").write_text("class,count\nc,6\na,3\nb,1\n")
    assert read_priors(tmp_path / "p.csv", "abc").tolist() == [0.3, 0.1, 0.6]


def test_a_class_without_samples_is_named_where_frequencies_of_deployment_count():
    """Its share was spread over the other classes without a word."""
    logits, labels = drawn([0.5, 0.5, 0.0], 200, 0)
    rule = Decision(strength=1.0)
    found = Difference.of([(rule, logits)] * 2, [COSTS, COSTS], labels, frequencies=OFTEN)
    assert "Without c, 80 % of the cases there: no sample of them was seen." in found.verdict
    assert "Without" not in replace(found, frequencies=None).verdict
