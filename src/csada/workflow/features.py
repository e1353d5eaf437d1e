"""Training on the features of a frozen backbone: they are computed once and kept in the cache; only heads are trained.

A classifier of this kind takes samples, like any other. To train it further it is lowered to its head, which takes features,
and what comes of it is lifted again.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from csada.classifier import Classifier, Input, Member
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import seal, sealed
from csada.data.splits import Part, Splits
from csada.data.store import entry
from csada.errors import InputError
from csada.evaluation import predict_logits
from csada.folders import CONFIG
from csada.manifest import read_manifest
from csada.models import arguments_for, load, load_weights
from csada.models.factories import runs_code
from csada.models.featured import NAME, Featured, without_head
from csada.models.modes import device_of
from csada.training.checkpoints import digest
from csada.workflow.train import train


class Backbone(NamedTuple):
    """body: samples in, features out."""

    body: nn.Module
    width: int
    name: str
    arguments: dict[str, Any]


def in_folder(spec: str) -> Classifier | None:
    """The classifier in a folder of `csada train`; None where there is no such folder."""
    if not (Path(spec) / CONFIG).exists():
        return None
    for member in read_manifest(Path(spec)).members:
        if runs_code(member.architecture):
            raise InputError(
                f"{spec} cannot be a backbone: {member.architecture!r} makes its network, and a head does not keep such code; "
                "train it whole with --model and --trust, or use a network of csada, timm or torchvision"
            )
    return Classifier.load(spec)


def backbone_of(spec: str, splits: Splits, pretrained: str | None = None) -> tuple[Backbone, Classifier | None]:
    """From a folder of `csada train`, which comes too; or timm:NAME, torchvision:NAME or a name of MODELS with weights."""
    if (given := in_folder(spec)) is not None:
        member = given.start
        if splits.shape != given.input.shape:
            raise InputError(
                f"the backbone {spec} takes samples of {given.input}; those of {splits.name} are {splits.shape}"
            )
        return Backbone(*without_head(member.model), str(member.architecture), dict(member.arguments)), given
    if pretrained is None:
        raise InputError(
            f"{spec!r} is no folder of csada train; to use it as a backbone, give its weights: --pretrained FILE"
        )
    arguments = arguments_for(spec, splits.shape)
    return Backbone(*without_head(load_weights(load(spec, 2, **arguments), pretrained)), spec, arguments), None


def embedded(splits: Splits, backbone: Backbone, own: Normalization | None = None) -> Splits:
    """The samples' features, from the cache where they are known; `own` standardises them, else the training part does."""

    def part(given: Part) -> Part:
        plain = replace(given, augmentation=Augmentation())
        known = digest(*backbone.body.state_dict().values(), given.ids, plain.normalization, splits.shape)
        file = entry([NAME, backbone.name, backbone.arguments, known], NAME).with_suffix(".features")
        shape = len(given), backbone.width
        kept = sealed(file) or b""
        x = np.frombuffer(bytearray(kept), np.float32) if len(kept) == 4 * math.prod(shape) else np.array(np.nan)
        if not np.isfinite(x).all():
            x = predict_logits(backbone.body, plain).logits.numpy()
            if not np.isfinite(x).all():
                raise InputError(f"features of {backbone.name} are no numbers; check its weights and the samples")
            with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
                seal(file, x.tobytes())
        return Part(torch.from_numpy(x.reshape(shape)), given.y, content=given.ids, names=given.names)

    parts: dict[str, Any] = {name: part(each) for name, each in splits.parts.items()}
    if own is None:
        x = parts["train"].x.double()
        std = torch.where(x.std(0) > 0, x.std(0), 1.0)
        own = Normalization(tuple(x.mean(0).tolist()), tuple(std.tolist()))
    found: dict[str, Any] = {name: replace(each, normalization=own) for name, each in parts.items()}
    return replace(splits, columns=(), categories=(), **found)


def train_head(
    splits: Splits,
    spec: str,
    model: str = "linear",
    *,
    pretrained: str | None = None,
    device: Any = None,
    **options: Any,
) -> Classifier:
    """A head (linear or mlp) on the features of a frozen backbone. options: of `train`."""
    backbone, given = backbone_of(spec, splits, pretrained)
    takes = Input.of(splits) if given is None else given.input
    parts: dict[str, Any] = {
        name: replace(part, normalization=takes.normalization) for name, part in splits.parts.items()
    }
    backbone.body.to(device or "cpu").eval()
    found = train(embedded(replace(splits, **parts), backbone), model, device=device, **options)
    better = lifted(found, backbone, takes)
    known = better.trained_on if given is None else np.union1d(better.trained_on, given.trained_on)
    return replace(better, trained_on=known)


def is_featured(classifier: Classifier) -> bool:
    return all(member.architecture == NAME for member in classifier.members)


def lowered(classifier: Classifier, splits: Splits) -> tuple[Classifier, Splits, Backbone]:
    """The heads as a classifier of features, and the data as features. All members have the same backbone."""
    first = classifier.members[0].model
    assert isinstance(first, Featured)
    own = Normalization(tuple(first.mean.tolist()), tuple(first.std.tolist()))
    facts = classifier.members[0].arguments
    backbone = Backbone(first.backbone, facts["width"], facts["backbone"], dict(facts["arguments"]))
    members = tuple(
        replace(each, model=each.model.top, architecture=each.arguments["top"], arguments={"features": facts["width"]})  # type: ignore[arg-type]
        for each in classifier.members
    )
    takes = Input((backbone.width,), "float32", None, (), own)
    head = replace(classifier, members=members, input=takes, views=("identity",), allowed_views=("identity",))
    return head, embedded(classifier.adapt(splits), backbone, own), backbone


def lifted(head: Classifier, backbone: Backbone, takes: Input) -> Classifier:
    """The backbone under each head: a classifier of samples."""
    own = head.input.normalization

    def member(each: Member) -> Member:
        network = Featured(copy.deepcopy(backbone.body), each.model, own.mean, own.std).to(device_of(each.model))
        facts = {"backbone": backbone.name, "arguments": backbone.arguments, "top": each.architecture}
        return replace(each, model=network.eval(), architecture=NAME, arguments=facts | {"width": backbone.width})

    evidence = head.evidence
    if evidence is not None:
        evidence = replace(evidence, options={**evidence.options, NAME: backbone.name})
    return replace(head, members=tuple(map(member, head.members)), input=takes, evidence=evidence)
