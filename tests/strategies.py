"""Random but valid things for hypothesis, and what several test files use: small models, scikit-learn's conventions."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits
from torch import nn

import csada


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):  # the matrices are tiny: several threads would only wait for each other
        yield


def not_kept(estimator):
    """Conventions of scikit-learn that an estimator does not keep, and why."""
    equal_weights = {
        "check_sample_weight_equivalence_on_dense_data": "the rows come in other batches: equal on average"
    }
    return equal_weights if isinstance(estimator, csada.sklearn.CSADAClassifier) else {}


@st.composite
def cost_matrices(draw, min_classes=2, max_classes=6):
    n = draw(st.integers(min_classes, max_classes))
    cells = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))
    values = np.array(draw(st.lists(st.lists(cells, min_size=n, max_size=n), min_size=n, max_size=n)))
    np.fill_diagonal(values, 0)
    return csada.CostMatrix(values, referral_cost=draw(st.none() | st.floats(0, 1e6)))


def mlp(classes=4, features=5, seed=0, scale=3.0, dtype=torch.float64):
    """A random net with boundaries close enough that attacks end in every way."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes)).to(dtype)
    with torch.no_grad():
        net[2].weight *= scale
    return net.eval()


def conv(classes=4, seed=0, scale=4.0, dtype=torch.float64):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(96, classes),
        ).to(dtype)
    with torch.no_grad():
        net[5].weight *= scale
    return net.eval()
