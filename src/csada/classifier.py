"""Classifier: the one thing that `train` writes, `fit` improves, `evaluate` judges, `report` shows and `export` ships.

    stored sample --(input)--> network --> logits --(decision, costs)--> class, or REFER: a person decides

The network is one, or several members and views of the sample whose probabilities are averaged (csada.models.members).

A folder holds it: model.json (what it is, how it came about), model.safetensors (weights; those of the second member are in
model-2.safetensors, and so on), arrays.safetensors (costs, which samples it was trained on, the evidence), and, to be read,
costs.csv and README.md. The hashes in model.json tell a damaged or half-copied folder. Nothing in it is ever executed, unless
it names a factory and the caller trusts it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as arrays_as_bytes
from torch import Tensor, nn

from csada import data as datasets
from csada.costs import CostMatrix, name_changes
from csada.data.augment import VIEWS, View, allowed_views
from csada.data.splits import PARTS, Input, Part, Splits, seen
from csada.decisions import Abstention, Decision, MinimumExpectedCost, Rule, argmax
from csada.errors import InputError, check_known
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import Evidence, Training, arrays_of, costs_in
from csada.folders import CHANGES, CONFIG, replaced
from csada.logbook import Log
from csada.manifest import ARRAYS, FORMAT, Manifest, complete, deployed, read_manifest
from csada.metrics import REFER, Evaluation
from csada.models.members import Member, as_network, check_members, check_views
from csada.models.saved import check_architectures, fingerprint, load_members, read_tensors, save_members, signature
from csada.reading import plain, sha256, write_json
from csada.report.card import card

if TYPE_CHECKING:
    from csada.shipping.export import Exported

__all__ = ["Classifier", "Input", "Member", "deployed"]

SHARED = ("input", "classes", "decision", "views", "training", "allowed_views")  # as they are in model.json

Ids = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Classifier:
    """Members that take the same samples, and views of each sample: their probabilities are averaged.

    costs: None where it was trained without. trained_on: ids of samples, sorted. allowed_views: those that keep a sample's
    label, since training showed them.
    """

    members: tuple[Member, ...]
    input: Input
    classes: tuple[str, ...]
    costs: CostMatrix | None = None
    decision: Decision = Decision()  # noqa: RUF009 - frozen
    views: tuple[View, ...] = ("identity",)
    trained_on: Ids = field(default_factory=lambda: np.empty(0, np.uint64))
    training: Training | None = None
    evidence: Evidence | None = None
    allowed_views: tuple[View, ...] = ("identity",)

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("no members; one network or more are needed")
        named = self.training.data if self.training else "samples"
        check_views(self.views, self.allowed_views, self.input, named)
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise InputError(f"classes are {', '.join(self.classes)}; two or more are needed, all different")
        if self.costs is not None and self.costs.classes != self.classes:
            changes = name_changes(self.costs.classes, self.classes) or "the same in another order"
            raise InputError(f"the costs name other classes: {changes}")
        self.decision.rule(self._costs)  # refuses what does not fit the classes
        if self.trained_on.dtype != np.uint64 or self.trained_on.ndim != 1:
            found = f"{self.trained_on.dtype} of shape {self.trained_on.shape}"
            raise InputError(f"trained_on is {found}; uint64 of one dimension is needed")
        if self.evidence is not None:
            if self.evidence.classes != self.classes:
                raise InputError("the evidence is about other classes")
            if self.costs is None or "costs" not in self.evidence.arrays or self.costs != self.evidence.costs:
                raise InputError("the evidence is about other costs; evidence=None leaves it out")
        if len(self.members) > 1:
            check_members(self.members, self.input, len(self.classes))

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Splits,
        costs: CostMatrix | None = None,
        *,
        architecture: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        decision: Decision | Rule | None = None,
    ) -> Classifier:
        """Any network that takes the samples of `data` normalised, and gives one score per class.

        decision: a rule such as MinimumExpectedCost; argmax unless given. architecture and arguments are needed by `save`
        alone: `package.module:factory` and what it is called with, or a name of csada.models.MODELS.
        """
        given = decision if isinstance(decision, Decision) else Decision.of(decision or argmax)
        inner = decision.rule if isinstance(decision, Abstention) else decision
        own = inner.costs if isinstance(inner, MinimumExpectedCost) else None
        if isinstance(table := costs or own, CostMatrix):
            costs = table.ordered(data.classes)
            if own is not None and not np.array_equal(own.values, costs.values):
                raise InputError("the rule decides by other costs, or has the classes in another order than the data")
        member = Member(model, architecture, arguments or {})
        ids, allowed = np.unique(data.train.ids), allowed_views(data.train.augmentation, data.shape)
        return cls((member,), Input.of(data), data.classes, costs, given, trained_on=ids, allowed_views=allowed)

    @classmethod
    def together(cls, classifiers: Sequence[Classifier], views: tuple[View, ...] = ("identity",)) -> Classifier:
        """The members of all as one classifier, each with its temperature and weight, under these views of a sample.

        It takes the most probable class: the decisions of its parts were chosen for other scores. `improve` with epochs=0
        (csada fit --epochs 0) chooses one.
        """
        if not classifiers:
            raise InputError("no classifiers to put together; give one or more")
        first, costs = classifiers[0], next((each.costs for each in classifiers if each.costs), None)
        for number, each in enumerate(classifiers, 1):
            if each.classes != first.classes:
                changes = name_changes(each.classes, first.classes) or "their order"
                raise InputError(f"classifier {number} has other classes: {changes}")
            if each.input != first.input:
                same = " normalised otherwise" if str(each.input) == str(first.input) else ""
                raise InputError(f"classifier {number} takes {each.input}{same}; the first takes {first.input}")
            if each.costs and costs and each.costs != costs:
                raise InputError(
                    f"classifier {number} has other costs; replace(classifier, costs=None) leaves them out"
                )
        members = tuple(member for each in classifiers for member in each.members)
        allowed = tuple(view for view in VIEWS if all(view in each.allowed_views for each in classifiers))
        ids = np.unique(np.concatenate([each.trained_on for each in classifiers]))
        return cls(members, first.input, first.classes, costs, Decision(), views, ids, first.training, None, allowed)

    # -- in use ------------------------------------------------------------------------------------

    @cached_property
    def network(self) -> nn.Module:
        """Normalised samples in, logits out: the only member's own network, or all members and views as one."""
        return as_network(self.members, self.views)

    @property
    def architecture(self) -> str:
        """Its members and views in words."""
        views = "" if self.views == ("identity",) else f", views {', '.join(self.views)}"
        return " + ".join(member.name for member in self.members) + views

    @property
    def passes(self) -> int:
        """Forward passes per sample."""
        return len(self.members) * len(self.views)

    def facts(self) -> list[tuple[str, float, float]]:
        return [(member.name, member.temperature, member.weight) for member in self.members]

    @property
    def start(self) -> Member:
        """The member from which training continues: the only one."""
        if len(self.members) > 1:
            raise InputError(
                f"the classifier has {len(self.members)} members, which cannot be trained further as one; train them "
                "one by one, or only choose the decision rule (--epochs 0)"
            )
        return self.members[0]

    @property
    def rule(self) -> MinimumExpectedCost | Abstention:
        """Logits in, classes out."""
        return self.decision.rule(self._costs)

    @property
    def _costs(self) -> CostMatrix:
        return self.costs or CostMatrix.from_pairs(self.classes, {})

    def logits(self, x: Any) -> Tensor:
        """x as it is stored, [N, ...]: pixels or rows."""
        part = self._part(x, torch.zeros(len(x), dtype=torch.int64))
        return predict_logits(self.network, part).logits if len(part) else torch.empty(0, len(self.classes))

    def _part(self, x: Any, y: Any) -> Part:
        samples = torch.as_tensor(x)
        if tuple(samples.shape[1:]) != self.input.shape:
            raise InputError(f"samples of shape {tuple(samples.shape[1:])}; the classifier takes {self.input}")
        return Part(samples, torch.as_tensor(y), self.input.normalization)

    def probabilities(self, x: Any) -> NDArray[np.float64]:
        """[N, K], calibrated."""
        return self.decision.automatic(self._costs).probabilities(self.logits(x))

    def expected_costs(self, x: Any) -> NDArray[np.float64]:
        """[N, K]: what each answer is expected to cost. With a strength of 1 the decision is the least of them (`decide`)."""
        return self.decision.automatic(self._costs).decide(self.logits(x)).expected_costs

    def predict(self, x: Any) -> NDArray[np.int64]:
        """[N]: the number of a class, or REFER (-1) where a person decides."""
        return np.asarray(self.rule(self.logits(x)))

    def decide(self, x: Any) -> tuple[Any, ...]:
        """What an exported file says, in the same order: OUTPUTS of csada.shipping.onnx_file."""
        logits = self.logits(x)
        decided = self.decision.automatic(self._costs).decide(logits)
        rows, refer = np.arange(len(logits)), np.asarray(self.rule(logits)) == REFER
        p, chosen = decided.probabilities, decided.chosen
        return chosen, p[rows, chosen], decided.cost, refer, p, decided.expected_costs, decided.criterion

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of what decides: weights, views, classes, rule and costs. Each line of a log carries it."""
        return fingerprint(self.members, self.views, self.classes, self.decision, self._costs.values)

    def log(self, path: str | os.PathLike[str], x: Any, ids: Sequence[Any] | None = None) -> NDArray[np.int64]:
        """Decide as `predict` does, and append the decisions to a log for `csada monitor`; ids: names of the samples."""
        if ids is not None and len(ids) != len(x):
            raise InputError(f"{len(ids)} ids for {len(x)} samples; give one per sample")
        chosen, *_, refer = (decided := self.decide(x))[:4]
        with Log(path, self.fingerprint, self.classes) as log:
            log.write(decided, [row.tobytes() for row in torch.as_tensor(x).cpu().numpy()], ids)
        return np.where(refer, REFER, chosen)

    def evaluate(
        self,
        data: Splits | str | os.PathLike[str] | tuple[Any, Any],
        costs: CostMatrix | None = None,
        part: str = "test",
        *,
        seen: str = "refuse",
    ) -> Evaluation:
        """What it gets wrong and what that costs, by its own costs unless others are given.

        data: Splits, a folder or a table, or (x, y) as stored. Samples that it was trained on would flatter it: they are
        refused, or with seen="drop" left out, or with seen="keep" judged all the same; the training part is never refused.
        """
        table = self.costs if costs is None else costs.ordered(self.classes)
        if table is None:
            raise InputError(
                "the classifier was trained without costs; give costs=, CostMatrix.uniform(n) for the error rate"
            )
        return evaluate_scores(self.scores(data, part, seen=seen), table, self.rule)

    def scores(self, data: Any, part: str = "test", *, seen: str = "refuse") -> Scores:
        """Logits and labels of a part of the data ("all": of all), in their order."""
        check_known("part", part, (*PARTS, "all"))
        if isinstance(data, tuple):
            parts = [self._part(*data)]
        else:
            given = self.load_data(data) if isinstance(data, str | os.PathLike) else data
            splits = self.adapt(given, every_class=False)
            names = PARTS if part == "all" else (part,)
            parts = [splits.train if name == "train" else self.unseen(splits, name, seen) for name in names]
        found = [predict_logits(self.network, each) for each in parts if len(each)]
        if not found:
            raise InputError(
                f"there are no samples in {part} to evaluate on, or none that the classifier was not trained on"
            )
        return Scores(*map(torch.cat, zip(*found, strict=True)))

    # -- the data as it knows them -----------------------------------------------------------------

    def load_data(self, source: str | os.PathLike[str], **options: Any) -> Splits:
        """A data set by name or path: images in the size that the network takes, of a table its columns by name.

        Missing values and words are encoded as in training. Other columns, such as an id, are not read. By default the
        last one that it does not take is the label.
        """
        table = {name: getattr(self.input, name) for name in ("columns", "categories", "normalization")}
        own: dict[str, Any] = table if self.input.is_row else {"size": self.input.shape[-1]}
        known = datasets.options_of(source, options.get("data_dir"))
        return datasets.load(source, **{name: value for name, value in own.items() if name in known} | options)

    def adapt(self, splits: Splits, *, every_class: bool = True) -> Splits:
        """The data with its classes and columns in the order of training, and normalised as there.

        Other classes, columns and shapes are refused; without `every_class` the data may lack some.
        """
        if set(splits.classes) - set(self.classes) or (every_class and set(self.classes) - set(splits.classes)):
            changes = name_changes(splits.classes, self.classes)
            raise InputError(f"{splits.name} has other classes than the classifier: {changes}")
        places, columns = None, self.input.columns or splits.columns
        found, own = Input.of(splits).features, self.input.features
        if found and own and found != own:
            if changes := name_changes(splits.columns, columns):
                raise InputError(f"{splits.name} has other columns than the classifier: {changes}")
            if other := set(found) ^ set(own):
                raise InputError(
                    f"{splits.name} has other categories than the classifier in column {min(other)[0]!r}; load the table with "
                    "Classifier.load_data, which encodes it as in training"
                )
            places = torch.tensor([found.index(feature) for feature in own])
        if self.input.shape != splits.shape:
            given = " x ".join(map(str, splits.shape))
            raise InputError(
                f"the classifier takes samples of {self.input}; those of {splits.name} are {given}: see --size"
            )
        number = torch.tensor([self.classes.index(c) for c in splits.classes])

        def known(part: Part) -> Part:
            x = part.x if places is None else part.x[:, places]
            costs = part.costs
            if costs is not None:
                costs = costs.new_zeros(len(part), len(self.classes)).index_copy_(1, number, costs)
            return replace(part, x=x, y=number[part.y], normalization=self.input.normalization, costs=costs)

        train, validation, test = map(known, (splits.train, splits.validation, splits.test))
        told = replace(
            splits, classes=self.classes, columns=columns, categories=self.input.categories or splits.categories
        )
        return replace(told, train=train, validation=validation, test=test)

    def known(self, splits: Splits, name: str) -> NDArray[np.bool_]:
        """[N]: which samples of a part this classifier was trained on.

        Outside the training part, those that the training part holds too do not count: loading the data names such duplicates.
        """
        ids = getattr(splits, name).ids
        found = seen(ids, self.trained_on)
        return found if name == "train" else found & ~seen(ids, splits.train.ids)

    def unseen(self, splits: Splits, name: str, what: str = "refuse") -> Part:
        """A part of the data, after looking for samples that this classifier was trained on."""
        if what not in ("refuse", "drop", "keep"):
            raise InputError(f"seen is {what!r}; known: refuse, drop, keep")
        part: Part = getattr(splits, name)
        known = self.known(splits, name)
        if what == "keep" or not known.any():
            return part
        if what == "drop":
            return part.take(np.flatnonzero(~known))
        raise InputError(
            f"{int(known.sum()):,} of {len(part):,} {name} samples of {splits.name} are ones that the classifier was trained "
            "on: judging by them flatters it. Leave them out (--seen drop), or keep them knowingly (--seen keep)"
        )

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], changes: str | None = None) -> Path:
        """All of it or nothing; what `folder` had before is replaced, files of others stay. changes: a new version's."""
        check_architectures(self.members, len(self.classes))
        outdated: list[str] = []
        with suppress(InputError):  # no model there yet, or none that can be read
            outdated = [member.file for member in read_manifest(Path(folder)).members]
        arrays: dict[str, Any] = {"trained_on": self.trained_on}
        if self.costs is not None:
            arrays |= arrays_of(self.costs)
        if self.evidence is not None:
            arrays |= self.evidence.arrays
        with replaced(Path(folder), outdated) as new:
            content = arrays_as_bytes({name: np.ascontiguousarray(values) for name, values in arrays.items()})
            (new / ARRAYS).write_bytes(content)
            members, facts = save_members(self.members, new), {name: getattr(self, name) for name in SHARED}
            evidence = None if self.evidence is None else replace(self.evidence, arrays={})
            made = Manifest(FORMAT, members, evidence=evidence, arrays=sha256(content), **facts)
            manifest: dict[str, Any] = plain(made)
            write_json(new / CONFIG, manifest | {"sha256": signature(manifest)})
            if self.costs is not None:
                self.costs.to_csv(new / "costs.csv")
            if self.evidence is not None:
                about = card(self.evidence, str(self.input), self.facts(), self.views)
                (new / "README.md").write_text(about, encoding="utf-8")
            if changes is not None:
                (new / CHANGES).write_text(changes, encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: torch.device | str = "cpu", trust: bool = False
    ) -> Classifier:
        """trust=True lets the folder name a factory of its own, which is code that runs."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        arrays = read_tensors(folder / ARRAYS, manifest.arrays, load_arrays)
        members = load_members(manifest.members, folder, len(manifest.classes), device, trust)
        where, facts = str(folder / CONFIG), {name: getattr(manifest, name) for name in SHARED}
        try:
            evidence = complete(manifest.evidence, arrays)
            costs = costs_in(arrays, manifest.classes) if "costs" in arrays else None
            trained_on = arrays.get("trained_on", np.empty(0, np.uint64))
            return cls(members, costs=costs, trained_on=trained_on, evidence=evidence, **facts)
        except InputError as error:
            raise InputError(str(error) if where in str(error) else f"{folder}: {error}; fit the model again") from None

    def export(self, path: str | os.PathLike[str], dtype: str | None = None) -> Exported:
        """One ONNX file: stored samples in, decisions out, on any machine with onnxruntime."""
        from csada.shipping.export import export

        card: dict[str, Any] = {"data": self.training.data, "model": self.training.model} if self.training else {}
        card |= {"members": self.facts(), "views": list(self.views), "fingerprint": self.fingerprint}
        return export(self.network, self.input, self.input.normalization, self.rule, path, dtype, card)
