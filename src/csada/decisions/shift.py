"""What scores say about a deployed classifier without labels, as long as only the classes' frequencies change (label shift).

Frequencies: expectation maximisation on calibrated probabilities (Saerens et al., 2002; Alexandari et al., 2020), and, to
compare, black-box shift estimation from the counts of predicted classes alone (Lipton et al., 2018).

Counts and costs: the probabilities, re-weighted to those frequencies, say how often each mistake is expected. Validation says
how far such sums were off there (prediction-powered inference, Angelopoulos et al., 2023): that corrects the estimate as far
as it exceeds chance, and is the part of the band that comes from calibration. The other part is chance among the decisions.

Change: if p(x | y) is no longer that of validation, all this is worthless. Means of features of the scores are compared with
the best mixture of validation's means by class, so that frequencies alone can never explain a difference.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import log_softmax

from csada.decisions.arrays import Floats, Labels, labelled
from csada.decisions.calibration import Scaling, cross_fitted, fit_calibration
from csada.metrics import REFER, Interval

LEAST = 1e-7  # probabilities below are the same: single precision and six digits in a log keep no more
CELLS = 64
DRAWS = 1000
MOST = 20_000  # decisions of a chunk that estimate frequencies; more would not change the third digit
FALSE_ALARMS = 0.005  # of the test of change, in simulations from validation
SIMULATIONS = 400
FEW = 20.0
MANY = 64  # classes


def em_frequencies(p: Floats, prior: Floats, tolerance: float = 1e-5, rounds: int = 500) -> Floats:
    """[K]: the frequencies under which these posteriors, made for the frequencies `prior`, are likeliest."""
    found, ratio = prior, p[:: math.ceil(len(p) / MOST)] / np.maximum(prior, LEAST)
    for _ in range(rounds):
        weighted = ratio * found
        moved = (weighted / weighted.sum(1, keepdims=True)).mean(0)
        done = np.abs(moved - found).max() < tolerance
        found = moved
        if done:
            break
    return np.asarray(found)


def bbse_frequencies(confusion: Floats, predicted: Floats) -> Floats:
    """[K]. confusion: [truth, predicted], shares of all validation samples. predicted: the shares in deployment."""
    weights, _ = nnls(confusion.T, predicted)
    found = weights * confusion.sum(1)
    return np.asarray(found / found.sum() if found.sum() > 0 else confusion.sum(1))


class Estimate(NamedTuple):
    """A count or a cost per decision, with its 95 % band."""

    value: float
    band: Interval


class Change(NamedTuple):
    """How far the scores are from any mixture of validation's classes; found: further than FALSE_ALARMS of simulations are."""

    statistic: float
    limit: float

    @property
    def found(self) -> bool:
        return self.statistic > self.limit


@dataclass(frozen=True)
class Reference:
    """Validation samples as a deployed model decides them: what its later decisions are compared with."""

    probabilities: Floats  # [n, K], as the log has them
    truth: Labels  # [n]
    predicted: Labels  # [n], REFER where a person decides
    costs: Floats  # [K, K]
    referral_cost: float = 0.0
    _limits: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        labelled(self.probabilities, self.truth, len(self.costs))

    @cached_property
    def _scores(self) -> Floats:
        return np.log(np.maximum(self.probabilities, LEAST))

    @cached_property
    def _calibration(self) -> tuple[float, Scaling | None]:
        with warnings.catch_warnings():  # who fitted the model was warned
            warnings.simplefilter("ignore")
            return fit_calibration(self._scores, self.truth, "vector")

    def calibrated(self, probabilities: Any) -> Floats:
        """Bias-corrected: a scale and a bias per class, fitted on validation."""
        temperature, scaling = self._calibration
        found = np.empty(np.shape(probabilities))
        for start in range(0, len(found), MOST):  # in blocks: a chunk may hold a million rows
            scores = np.log(np.maximum(probabilities[start : start + MOST], LEAST)) / temperature
            scores = scores @ scaling.matrix + scaling.bias if scaling else scores
            found[start : start + MOST] = np.exp(log_softmax(scores, axis=1))
        return found

    @cached_property
    def posteriors(self) -> Floats:
        """[n, K]: calibrated on other folds."""
        return np.exp(cross_fitted(self._scores, self.truth, "vector"))

    @cached_property
    def prior(self) -> Floats:
        """What the calibrated probabilities take the frequencies to be."""
        return np.asarray(self.calibrated(self.probabilities).mean(0))

    @cached_property
    def frequencies(self) -> Floats:
        """Of the classes on validation; never quite zero, so that a class that it lacks has a weight."""
        counts = np.bincount(self.truth, minlength=len(self.costs)) + 1e-3
        return np.asarray(counts / counts.sum())

    @cached_property
    def confusion(self) -> Floats:
        k = len(self.costs)
        cells = self.truth * k + self.probabilities.argmax(1)
        return np.asarray(np.bincount(cells, minlength=k * k).reshape(k, k) / len(self.truth))

    @cached_property
    def _by_pair(self) -> tuple[Floats, Floats, Floats]:
        """[K, K] each: of validation's decisions the expected counts, their variances, and the real counts."""
        decided, counted = self.predicted != REFER, np.zeros(self.costs.shape)
        np.add.at(counted, (self.truth[decided], self.predicted[decided]), 1)
        return *_by_pair(self.posteriors, self.predicted), counted

    @cached_property
    def _moments(self) -> _Moments:
        return _Moments.of(features(self.probabilities), self.truth, len(self.costs))

    def limit(self, decisions: int) -> float:
        """What the statistic of change stays below in all but FALSE_ALARMS of simulations, where only frequencies change.

        Validation is drawn anew to be the reference, and a chunk of it, with frequencies drawn from all possible ones.
        """
        size = round(2 * math.log2(max(decisions, 2)))  # one simulation for chunks of about the same size
        if size not in self._limits:
            draw, k, n = np.random.default_rng(size), len(self.costs), round(2 ** (size / 2))
            found, seen = features(self.probabilities), [np.flatnonzero(self.truth == c) for c in range(k)]
            present = np.array([len(rows) > 0 for rows in seen])
            statistics = []
            for i in range(SIMULATIONS):
                if i % 5 == 0:
                    rows = draw.integers(len(self.truth), size=len(self.truth))
                    moments = _Moments.of(found[rows], self.truth[rows], k)
                weights = draw.dirichlet(np.ones(k)) * present
                counts = draw.multinomial(n, weights / weights.sum())
                chunk = np.concatenate([draw.choice(r, c) for r, c in zip(seen, counts, strict=True) if c])
                statistics.append(moments.distance(found[chunk]))
            self._limits[size] = float(np.quantile(statistics, 1 - FALSE_ALARMS))
        return self._limits[size]


def features(p: NDArray[np.floating]) -> Floats:
    """[n, d]: the likeliest class and the log odds of it, by class; of MANY classes their groups, and the odds of all."""
    p = np.asarray(p, np.float64)
    n, k = p.shape
    top, rows = p.argmax(1), np.arange(n)
    doubt = np.maximum(p.sum(1) - p[rows, top], LEAST)
    odds = np.log(np.maximum(p[rows, top], LEAST)) - np.log(doubt)
    if k < MANY:
        found = np.zeros((n, 2 * k))
        found[rows, k + top] = odds
    else:
        top = top % MANY
        found = np.zeros((n, MANY + 1))
        found[:, MANY] = odds
    found[rows, top] = 1.0
    return found


class _Moments(NamedTuple):
    """Mean and covariance of the features by class, in units of their spread."""

    centre: Floats
    spread: Floats
    means: Floats  # [K, d]
    covariances: Floats  # [K, d, d]; with MANY classes [1, d, d], the same for all
    counts: Floats  # [K]

    @classmethod
    def of(cls, found: Floats, truth: Labels, k: int) -> _Moments:
        """A class of few samples borrows the covariance of all, as much as FEW samples weigh."""
        centre, spread = found.mean(0), found.std(0) + 1e-9
        scaled = (found - centre) / spread
        counts = np.bincount(truth, minlength=k).astype(np.float64)
        means = np.zeros((k, scaled.shape[1]))
        np.add.at(means, truth, scaled)
        means /= np.maximum(counts, 1)[:, None]
        away = scaled - means[truth]
        covariances = (away.T @ away / len(truth))[None]
        if k < MANY:
            own = np.array([away[truth == c].T @ away[truth == c] for c in range(k)])
            covariances = (own + FEW * covariances) / (counts + FEW)[:, None, None]
        return cls(centre, spread, means, covariances, np.maximum(counts, 1))

    def distance(self, found: Floats) -> float:
        """Of the features' means to the nearest mixture of classes, in standard errors, squared."""
        n, mean, (k, d) = len(found), (found.mean(0) - self.centre) / self.spread, self.means.shape
        mixture, residual = self.counts / self.counts.sum(), mean
        for _ in range(3):
            shares = mixture / n + mixture**2 / self.counts
            noise = np.tensordot(
                shares if len(self.covariances) == k else shares.sum(keepdims=True), self.covariances, 1
            )
            noise += (1e-6 * np.trace(noise) / d + 1e-9) * np.eye(d)  # none is known where no class has two samples
            whiten = np.linalg.cholesky(np.linalg.inv(noise)).T
            left = np.vstack([whiten @ self.means.T, np.full((1, k), 1e4)])  # the last row: frequencies sum to one
            mixture, _ = nnls(left, np.append(whiten @ mean, 1e4))
            mixture /= mixture.sum()
            residual = whiten @ (mean - mixture @ self.means)
        return float(residual @ residual)


@dataclass(frozen=True)
class Chunk:
    """Decisions of a period and what the reference makes of them."""

    reference: Reference
    probabilities: NDArray[np.floating]  # [n, K]
    predicted: Labels  # [n]

    @cached_property
    def _some(self) -> NDArray[np.floating]:
        return self.probabilities[:: math.ceil(len(self.probabilities) / MOST)]

    @cached_property
    def frequencies(self) -> Floats:
        return em_frequencies(self.reference.calibrated(self._some), self.reference.prior)

    @cached_property
    def frequencies_by_counts(self) -> Floats:
        k = len(self.reference.costs)
        counts = np.bincount(self.probabilities.argmax(1), minlength=k)
        return bbse_frequencies(self.reference.confusion, counts / counts.sum())

    @cached_property
    def change(self) -> Change:
        return Change(self.reference._moments.distance(features(self._some)), self.reference.limit(len(self._some)))

    @cached_property
    def posteriors(self) -> Floats:
        """[n, K]: for the frequencies of this period."""
        found = self.reference.calibrated(self.probabilities)
        found *= self.frequencies / np.maximum(self.reference.prior, LEAST)
        found /= found.sum(1, keepdims=True)
        return found

    def mean_cost(self) -> Estimate:
        """Of a decision; a referred one costs its price for certain."""
        return self.estimate(self.reference.costs, self.reference.referral_cost)

    def estimate(self, values: Floats, referred: float = 0.0) -> Estimate:
        """The mean of values[truth, predicted] over all decisions, which are `referred` where a person decides."""
        ref, n = self.reference, len(self.predicted)
        fixed = referred * float((self.predicted == REFER).mean())
        here = _sums(self.posteriors, self.predicted, values)
        weights = (self.frequencies / ref.frequencies)[:, None]
        there, m = ref.predicted != REFER, len(ref.truth)
        expected = _sums(ref.posteriors, ref.predicted, weights * values)
        counted = float((weights * values)[ref.truth[there], ref.predicted[there]].sum())
        off, variance = (counted - expected.mean) / m, expected.variance / m**2
        off *= max(0.0, 1 - variance / off**2) if off else 0.0
        raw = here.mean / n
        value = max(raw + off, 0.0)
        grown = max(value / raw, 0.25) if raw > 0 else 1.0
        draws = value + _noise(here.rates, values / n, here.variance * grown / n**2, seed=0)
        draws += _noise(expected.rates, weights * values / m, variance, seed=1)
        low, high = np.maximum(np.quantile(draws, [0.025, 0.975]), 0.0)
        low, high = min(low, value), max(high, value)  # of a rare count every likely outcome may be zero
        if math.exp(-here.rates[values > 0].sum() * grown) > 0.025:  # no mistake at all is not unlikely
            low = 0.0
        return Estimate(fixed + value, Interval(fixed + float(low), fixed + float(high)))

    def counts(self, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats, Floats]:
        """[P] each: value, low and high that `estimate` has for a table of zeros with a one at that (truth, predicted).

        The sums over all decisions are taken once for all pairs.
        """
        if not pairs:
            return np.empty(0), np.empty(0), np.empty(0)
        ref, n, m, at = self.reference, len(self.predicted), len(self.reference.truth), tuple(np.array(pairs).T)
        rates, variances = (each[at] for each in _by_pair(self.posteriors, self.predicted))
        expected, unsure, counted = (each[at] for each in ref._by_pair)
        weights = (self.frequencies / ref.frequencies)[at[0]]
        off, variance = weights * (counted - expected) / m, weights**2 * unsure / m**2
        with np.errstate(divide="ignore", invalid="ignore"):
            off *= np.where(off != 0, np.maximum(0.0, 1 - variance / off**2), 0.0)
            value = np.maximum(rates / n + off, 0.0)
            grown = np.where(rates > 0, np.maximum(value / (rates / n), 0.25), 1.0)
        draws = value + _rare(rates, variances * grown / n**2, seed=0)
        draws += _rare(expected, variance, seed=1)
        low, high = np.maximum(np.quantile(draws, [0.025, 0.975], axis=0), 0.0)
        low = np.where(np.exp(-rates * grown) > 0.025, 0.0, np.minimum(low, value))
        return value, low, np.maximum(high, value)


class _Sums(NamedTuple):
    mean: float
    variance: float
    rates: Floats  # [K, K]: the expected count of each pair


def _sums(p: Floats, predicted: Labels, values: Floats) -> _Sums:
    """Of values[truth, predicted], the truth of each row being drawn from p; where a person decides there is none."""
    mean, variance, rates = 0.0, 0.0, np.zeros(values.shape)
    for start in range(0, len(p), MOST):  # in blocks, as above
        some = predicted[start : start + MOST]
        rows, some = p[start : start + MOST][some != REFER], some[some != REFER]
        by_truth = values.T[some]
        means = (rows * by_truth).sum(1)
        mean, variance = mean + float(means.sum()), variance + float(((rows * by_truth**2).sum(1) - means**2).sum())
        np.add.at(rates.T, some, rows)
    return _Sums(mean, variance, rates)


def _noise(rates: Floats, values: Floats, variance: float, seed: int) -> Floats:
    """[DRAWS]: sums of values over Poisson counts, skewed as rare expensive mistakes are, with mean 0 and that variance."""
    cells = np.flatnonzero((rates * values).ravel() > 0)
    if not len(cells) or variance <= 0:
        return np.zeros(DRAWS)
    cells = cells[np.argsort(values.ravel()[cells])]
    groups = np.array_split(cells, min(CELLS, len(cells)))
    rate = np.array([rates.ravel()[group].sum() for group in groups])
    value = np.array([rates.ravel()[group] @ values.ravel()[group] for group in groups]) / rate
    draws = (np.random.default_rng(seed).poisson(rate, (DRAWS, len(rate))) - rate) @ value
    return np.asarray(draws * math.sqrt(variance / float(rate @ value**2)))


def _by_pair(p: Floats, predicted: Labels) -> tuple[Floats, Floats]:
    """[K, K] each, (truth, predicted): the expected counts, and their variances."""
    rates, variances = np.zeros((2, p.shape[1], p.shape[1]))
    for start in range(0, len(p), MOST):
        rows, some = p[start : start + MOST], predicted[start : start + MOST]
        for z in np.unique(some[some != REFER]):
            here = rows[some == z]
            rates[:, z] += here.sum(0)
            variances[:, z] += (here - here**2).sum(0)
    return rates, variances


def _rare(rates: Floats, variances: Floats, seed: int) -> Floats:
    """[DRAWS, P]: for each pair what `_noise` draws of its count alone."""
    found, generator = np.zeros((len(rates), DRAWS)), np.random.default_rng(seed)
    start = generator.bit_generator.state
    for i in np.flatnonzero((rates > 0) & (variances > 0)):
        generator.bit_generator.state = start
        found[i] = (generator.poisson(rates[i], DRAWS) - rates[i]) * math.sqrt(variances[i] / rates[i])
    return found.T
