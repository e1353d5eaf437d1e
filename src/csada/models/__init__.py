"""Classifiers: a few of our own, any nn.Module of yours, and the files they are kept in."""

from csada.models.factories import arguments_for, load
from csada.models.featured import NAME, featured
from csada.models.layers import freeze, head, replace_head, unfreeze
from csada.models.plain import cnn, mlp
from csada.models.recipes import RECIPES, Recipe, Stage
from csada.models.residual import ResNet, resnet
from csada.models.weights import load_weights
from csada.models.zoo import MODELS, create

MODELS[NAME] = featured  # here, since it builds others by their names

__all__ = [
    "MODELS",
    "RECIPES",
    "Recipe",
    "ResNet",
    "Stage",
    "arguments_for",
    "cnn",
    "create",
    "freeze",
    "head",
    "load",
    "load_weights",
    "mlp",
    "replace_head",
    "resnet",
    "unfreeze",
]
