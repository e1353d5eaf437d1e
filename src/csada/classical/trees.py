"""Decision trees that predict by cost (Breiman, Friedman, Olshen & Stone, 1984).

A leaf answers with the class of least expected cost under its class frequencies, not with the most frequent one. Its
leaves must be large enough to have frequencies.
"""

from __future__ import annotations

from typing import Any

from sklearn.tree import DecisionTreeClassifier

from csada.sklearn import Costs, MinimumExpectedCostClassifier


def cost_tree(
    costs: Costs = None, min_samples_leaf: int = 5, random_state: Any = None, **options: Any
) -> MinimumExpectedCostClassifier:
    """An unfitted tree; options are those of DecisionTreeClassifier."""
    tree = DecisionTreeClassifier(min_samples_leaf=min_samples_leaf, random_state=random_state, **options)
    return MinimumExpectedCostClassifier(tree, costs=costs)
