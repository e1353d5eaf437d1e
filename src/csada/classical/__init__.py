"""CSADA beyond neural networks, and the classical rivals, as scikit-learn estimators; one file per idea."""

from csada.classical.augmented import AugmentedClassifier
from csada.classical.averaged import AveragedClassifier
from csada.classical.cost_sensitive_svm import CostSensitiveSVM
from csada.classical.example_dependent import ExampleDependentLogisticRegression
from csada.classical.kernel import kernel_module
from csada.classical.linear import linear_direction, linear_maximiser
from csada.classical.one_sided import OneSidedRegressionSVM
from csada.classical.trees import cost_tree

__all__ = [
    "AugmentedClassifier",
    "AveragedClassifier",
    "CostSensitiveSVM",
    "ExampleDependentLogisticRegression",
    "OneSidedRegressionSVM",
    "cost_tree",
    "kernel_module",
    "linear_direction",
    "linear_maximiser",
]
