"""CSADA beyond neural networks, and the classical rivals, as scikit-learn estimators; one file per idea."""

from csada.classical.augmented import AugmentedClassifier as AugmentedClassifier
from csada.classical.averaged import AveragedClassifier as AveragedClassifier
from csada.classical.cost_sensitive_svm import CostSensitiveSVM as CostSensitiveSVM
from csada.classical.example_dependent import ExampleDependentLogisticRegression as ExampleDependentLogisticRegression
from csada.classical.kernel import kernel_module as kernel_module
from csada.classical.linear import linear_direction as linear_direction
from csada.classical.linear import linear_maximiser as linear_maximiser
from csada.classical.one_sided import OneSidedRegressionSVM as OneSidedRegressionSVM
from csada.classical.trees import cost_tree as cost_tree
