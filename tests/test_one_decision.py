"""One decision: the same logits are decided alike by Python, the classifier, scikit-learn, MetaCost, the report and ONNX."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

from csada.classifier import Classifier, Input, Member
from csada.costs import CostMatrix
from csada.data.augment import Normalization
from csada.data.splits import Part
from csada.decisions import Abstention, Decision, MinimumExpectedCost, Scaling, same_up_to
from csada.evidence import HELD_OUT, Environment, Evidence
from csada.methods.metacost import relabelled
from csada.metrics import REFER
from csada.reading import build, plain
from csada.sample import Sample
from csada.shipping.graph import Deployed, decide_in_torch
from csada.shipping.onnx_file import OUTPUTS
from csada.sklearn import CSADAClassifier, MinimumExpectedCostClassifier

CASES, SAMPLES = 1000, 6
PRICE = 0.37  # of a referral, whatever the threshold
SIZES = dict.fromkeys(("train", *HELD_OUT), SAMPLES)
NOWHERE = Environment("", None, "", {}, "", 1)
NAMES = tuple(OUTPUTS)


def random_costs(rng, k):
    y, z = rng.choice(k, 2, replace=False)
    groups = rng.integers(0, max(2, k // 3), k)
    off = 1 - np.eye(k)
    return CostMatrix(
        [
            CostMatrix.single_pair(k, y, z, 10.0 ** rng.integers(-3, 4)).values,
            np.zeros((k, k)),
            off * rng.uniform(0.1, 9),
            off * rng.pareto(1.5, (k, k)),
            off * rng.integers(0, 3, (k, k)),
            3.0 * (groups[:, None] != groups),  # mistakes within a group are free: sums that tie up to rounding
            off * rng.choice([0, 0.1, 7, 1000], (k, 1)),
        ][rng.integers(7)]
    )


def random_logits(rng, k):
    logits = rng.normal(0, 10.0 ** rng.uniform(-1, 1.3), (SAMPLES, k))
    if rng.random() < 0.5:
        logits = logits.round()  # many exact ties
    logits[0] = 0
    logits[1, rng.integers(k)] += 40  # so sure that the cost of being wrong is a rounding error
    return logits.astype(np.float32)


def random_multipliers(rng, k):
    """What limits on a pair, a class and a precision charge."""
    added, (y, z) = np.zeros((k, k)), rng.choice(k, 2, replace=False)
    added[y, z], added[z] = 10.0 ** rng.uniform(-2, 4), rng.uniform(0, 3)
    added[:, y] += rng.uniform(0, 5)
    return added


def random_case(seed):
    """(rule, logits); the rule refers, in every third case at the very cost that one of the samples has."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 51))
    scales = rng.uniform(0.5, 2, k) if rng.random() < 0.5 else np.eye(k) + rng.normal(0, 0.1, (k, k))
    scaling = Scaling(scales.tolist(), tuple(rng.normal(0, 1, k))) if rng.random() < 0.4 else None
    priors = rng.uniform(0.1, 3, k) * (rng.random(k) < 0.9)
    rule = MinimumExpectedCost(
        random_costs(rng, k),
        float(rng.choice([1.0, rng.uniform(0.05, 20)])),
        scaling,
        tuple(priors) if rng.random() < 0.4 and priors.any() else None,
        float(rng.choice([0.0, 0.3, 0.99, 1.0])),
        random_multipliers(rng, k) if rng.random() < 0.4 else None,
    )
    logits = random_logits(rng, k)
    costs = rule.decide(logits).doubt
    refer = [None, float(rng.choice(costs)), float(rng.uniform(0, 1.5 * costs.max()))][rng.integers(3)]
    return rule if refer is None else Abstention(rule, refer), logits


class Given(ClassifierMixin, BaseEstimator):
    """Probabilities in, the same out."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return X


def by_scikit_learn(rule, logits):
    """(CSADAClassifier on the logits, MinimumExpectedCostClassifier on the rule's probabilities), with their scores."""
    network = CSADAClassifier(
        nn.Identity(), epochs=0, fine_tune_epochs=0, standardize=False, decision="minimum_expected_cost"
    )
    for model, x in ((network, logits), (MinimumExpectedCostClassifier(Given()), rule.probabilities(logits))):
        model.set_params(costs=rule.costs).fit(
            np.tile(np.eye(rule.classes), (2, 1)), np.tile(np.arange(rule.classes), 2)
        )
        scores = model.decision_function(x)
        yield model.predict(x)
        yield scores.argmax(1) if scores.ndim == 2 else (scores > 0).astype(int)


def in_the_report(rule, logits, labels):
    """The report reads the rule from a file, and pays sample by sample."""
    costs, row = rule_costs(rule), "before + rule"
    read = {"before": build(Decision, json.loads(json.dumps(plain(Decision.of(rule)))), "rule")}
    arrays = {f"before_{part}": logits for part in HELD_OUT} | {f"{part}_labels": labels for part in HELD_OUT}
    arrays |= {"costs": costs.values, "referral_cost": np.array([PRICE])}
    return Evidence("", costs.classes, SIZES, "", "", {}, 0.5, 0.0, read, row, (), NOWHERE, "", arrays=arrays)


def rule_costs(rule):
    return (rule.rule if isinstance(rule, Abstention) else rule).costs


class Graph(nn.Module):
    def forward(self, *given):
        return decide_in_torch(*given)


def parameters(whole):
    """A rule as the graph holds it."""
    graph = Deployed(nn.Identity(), Sample((len(rule_costs(whole)),)), Normalization(), whole)
    numbers = (torch.tensor(value, dtype=torch.float64) for value in (graph.strength, graph.unit, graph.limit))
    added = torch.zeros_like(graph.costs) if graph.added is None else graph.added
    return (graph.weights, graph.bias, graph.costs, *numbers, added)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The decision alone as an ONNX graph, its rule an input, for any number of samples and classes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from csada.shipping.export import OPSET, _quiet

    whole, logits = random_case(0)
    samples, classes = torch.export.Dim("samples"), torch.export.Dim("classes", min=2)
    square = {0: classes, 1: classes}
    shapes = ({0: samples, 1: classes}, square, {0: classes}, square, None, None, None, square)
    names = ("logits", "weights", "bias", "costs", "strength", "unit", "limit", "added")
    with _quiet():
        program = torch.onnx.export(
            Graph(),
            (torch.from_numpy(logits), *parameters(whole)),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=names,
            output_names=NAMES,
            dynamic_shapes=(shapes,),
        )
    program.save(path := tmp_path_factory.mktemp("onnx") / "decision.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda *given: found.run(NAMES, dict(zip(names, (np.asarray(value) for value in given), strict=True)))


def test_a_thousand_cases_are_decided_alike_everywhere(session):
    for seed in range(CASES):
        whole, logits = random_case(seed)
        rule = whole.rule if isinstance(whole, Abstention) else whole
        decided, final = rule.decide(logits), whole(logits)
        by_file = session(logits, *parameters(whole))
        chosen, probability, cost, refer, probabilities, expected, criterion = by_file
        assert np.array_equal(chosen, decided.chosen), seed
        assert np.array_equal(np.where(refer, REFER, chosen), final), seed
        costs, given = rule.costs, Input((rule.classes,))
        classifier = Classifier((Member(nn.Identity()),), given, costs.classes, costs, Decision.of(whole))
        assert np.array_equal(classifier.predict(logits), final), seed
        told = classifier.decide(logits)
        assert np.array_equal(told[0], chosen) and np.array_equal(told[3], refer), seed
        unit, rows = rule.costs.values.max(), np.arange(SAMPLES)
        for said in (told, by_file):  # what is said of the decision is said of its class, which has the least criterion
            k, p, c, _, every_p, every_c, least = said
            assert np.array_equal(p, every_p[rows, k]) and np.array_equal(c, every_c[rows, k]), seed
            assert (least[rows, k] <= same_up_to(least.min(1), decided.unit)).all(), seed
        np.testing.assert_allclose(probabilities, decided.probabilities, atol=1e-12)
        np.testing.assert_allclose(probability, decided.probabilities[rows, chosen], atol=1e-12)
        np.testing.assert_allclose(cost, decided.cost, atol=1e-12 * unit)
        np.testing.assert_allclose(expected, decided.expected_costs, atol=1e-12 * unit)
        np.testing.assert_allclose(criterion, decided.criterion, rtol=1e-12, atol=1e-12 * max(unit, 1))

        labels = np.random.default_rng(seed).integers(0, rule.classes, SAMPLES)
        real = np.where(final == REFER, PRICE, rule.costs.values[labels, final])
        report = in_the_report(whole, logits, labels)
        assert np.array_equal(report.paid("before + rule"), real), seed
        table = np.zeros((rule.classes, rule.classes + 1), int)
        np.add.at(table, (labels, final), 1)  # REFER, -1, is the last column
        counted = report.test["before + rule"]
        assert np.array_equal(counted.confusion, table[:, :-1]) and counted.referred == table[:, -1].sum(), seed

        full = MinimumExpectedCost(rule.costs, rule.temperature, rule.scaling, rule.priors)
        network, network_scores, wrapper, wrapper_scores = by_scikit_learn(full, logits)
        plain = MinimumExpectedCost(rule.costs)(logits)
        assert np.array_equal(network, plain) and np.array_equal(network_scores, plain), seed
        assert np.array_equal(wrapper, full(logits)) and np.array_equal(wrapper_scores, full(logits)), seed
        p = torch.from_numpy(full.probabilities(logits))
        relabels = relabelled(p, Part(torch.from_numpy(logits), torch.from_numpy(labels)), rule.costs)
        assert np.array_equal(relabels, full(logits)), seed
