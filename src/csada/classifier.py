"""Classifier: the one thing that `train` writes, `fit` improves, `evaluate` judges, `report` shows and `export` ships.

    stored sample --(input)--> network --> logits --(decision, costs)--> class, or REFER: a person decides

A folder holds it: model.json (what it is, how it came about), model.safetensors (weights), arrays.safetensors (costs, which
samples it was trained on, the evidence), and for people costs.csv and README.md. The hashes in model.json tell a damaged or
half-copied folder. Nothing in it is ever executed, unless it names a factory and the caller trusts it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as arrays_as_bytes
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from csada import data as datasets
from csada.costs import CostMatrix, name_changes
from csada.data.augment import Normalization
from csada.data.splits import PARTS, Part, Splits, seen
from csada.decisions import Abstention, Decision, MinimumExpectedCost, Rule, argmax
from csada.errors import InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import Evidence, Training
from csada.folders import CONFIG, replaced
from csada.metrics import REFER, Evaluation
from csada.models import weights
from csada.models.factories import rebuild, sketch
from csada.models.weights import WEIGHTS, misfits
from csada.reading import build, parse_json, plain, read_bytes, read_text, sha256, write_json
from csada.report.card import card
from csada.sample import Dtype, Sample

if TYPE_CHECKING:
    from csada.shipping.export import Exported

FORMAT = 2
ARRAYS = "arrays.safetensors"
MOST = 2**36  # bytes of weights or arrays

Ids = NDArray[np.uint64]


@dataclass(frozen=True)
class Input(Sample):
    """A sample as it is stored, and how it is normalised."""

    normalization: Normalization = field(default_factory=Normalization)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (n := len(self.normalization.mean)) not in (1, self.shape[0]):
            raise InputError(f"{n} means and standard deviations for {self.shape[0]} channels or features")

    @classmethod
    def of(cls, splits: Splits) -> Input:
        dtype: Dtype = "uint8" if splits.train.x.dtype == torch.uint8 else "float32"
        return cls(splits.shape, dtype, splits.columns or None, splits.train.normalization)


@dataclass(frozen=True)
class Member:
    """A network and how it is built again: a name of csada.models.MODELS or `package.module:factory`, and its arguments."""

    model: nn.Module
    architecture: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Classifier:
    """members: one network for now. costs: None where it was trained without. trained_on: ids of samples, sorted."""

    members: tuple[Member, ...]
    input: Input
    classes: tuple[str, ...]
    costs: CostMatrix | None = None
    decision: Decision = Decision()  # noqa: RUF009 - frozen
    views: tuple[Literal["identity"], ...] = ("identity",)
    trained_on: Ids = field(default_factory=lambda: np.empty(0, np.uint64))
    training: Training | None = None
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if len(self.members) != 1 or self.views != ("identity",):
            raise InputError(f"{len(self.members)} members and views {', '.join(self.views)}; one network is needed")
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise InputError(f"classes are {', '.join(self.classes)}; two or more are needed, all different")
        if self.costs is not None and self.costs.classes != self.classes:
            raise InputError(f"the costs name other classes: {name_changes(self.costs.classes, self.classes)}")
        self.decision.rule(self._costs)  # refuses what does not fit the classes
        if self.trained_on.dtype != np.uint64 or self.trained_on.ndim != 1:
            found = f"{self.trained_on.dtype} of shape {self.trained_on.shape}"
            raise InputError(f"trained_on is {found}; uint64 of one dimension is needed")
        if self.evidence is not None:
            if self.evidence.classes != self.classes:
                raise InputError("the evidence is about other classes")
            if self.costs is None or not np.array_equal(self.costs.values, self.evidence.arrays.get("costs", ())):
                raise InputError("the evidence is about other costs; evidence=None leaves it out")

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
        return cls((member,), Input.of(data), data.classes, costs, given, trained_on=np.unique(data.train.ids))

    # -- in use ------------------------------------------------------------------------------------

    @property
    def network(self) -> nn.Module:
        """Normalised samples in, logits out."""
        return self.members[0].model

    @property
    def rule(self) -> MinimumExpectedCost | Abstention:
        """Logits in, classes out."""
        return self.decision.rule(self._costs)

    @property
    def _costs(self) -> CostMatrix:
        return self.costs or CostMatrix(CostMatrix.uniform(len(self.classes)).values, self.classes)

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
        """[N, K]: what each answer is expected to cost. With a strength of 1 the decision is the least of them."""
        return self.decision.automatic(self._costs).decide(self.logits(x)).expected_costs

    def predict(self, x: Any) -> NDArray[np.int64]:
        """[N]: the number of a class, or REFER (-1) where a person decides."""
        return np.asarray(self.rule(self.logits(x)))

    def decide(self, x: Any) -> tuple[Any, ...]:
        """Class [N], its probability [N], expected costs [N, K], refer [N], criterion [N, K]: as an exported file says it."""
        logits = self.logits(x)
        decided = self.decision.automatic(self._costs).decide(logits)
        rows, refer = np.arange(len(logits)), np.asarray(self.rule(logits)) == REFER
        return (
            decided.chosen,
            decided.probabilities[rows, decided.chosen],
            decided.expected_costs,
            refer,
            decided.criterion,
        )

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
        if part not in (*PARTS, "all"):
            raise InputError(f"unknown part {part!r}; known: {', '.join(PARTS)}, all")
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
                f"there are no samples in {part} to judge by, or none that the classifier was not trained on"
            )
        return Scores(*map(torch.cat, zip(*found, strict=True)))

    # -- the data as it knows them -----------------------------------------------------------------

    def load_data(self, source: str | os.PathLike[str], **options: Any) -> Splits:
        """A data set by name or path: images in the size that the network takes, of a table its columns by name.

        Other columns of a table, such as an id, are not read. The last one that it does not take is the label unless told.
        """
        own = {"columns": self.input.columns} if self.input.is_row else {"size": self.input.shape[-1]}
        known = datasets.options_of(source, options.get("data_dir"))
        return datasets.load(source, **{name: value for name, value in own.items() if name in known} | options)

    def adapt(self, splits: Splits, *, every_class: bool = True) -> Splits:
        """The data with its classes and columns in the order of training, and normalised as there.

        Other classes, columns and shapes are refused; without `every_class` the data may lack some.
        """
        if set(splits.classes) - set(self.classes) or (every_class and set(self.classes) - set(splits.classes)):
            changes = name_changes(splits.classes, self.classes)
            raise InputError(f"{splits.name} has other classes than the classifier: {changes}")
        if self.input.shape != splits.shape:
            given = " x ".join(map(str, splits.shape))
            raise InputError(
                f"the classifier takes samples of {self.input}; those of {splits.name} are {given}: see --size"
            )
        places, columns = None, self.input.columns or splits.columns
        if splits.columns and columns != splits.columns:
            if changes := name_changes(splits.columns, columns):
                raise InputError(f"{splits.name} has other columns than the classifier: {changes}")
            places = torch.tensor([splits.columns.index(column) for column in columns])
        number = torch.tensor([self.classes.index(c) for c in splits.classes])

        def known(part: Part) -> Part:
            x = part.x if places is None else part.x[:, places]
            costs = part.costs
            if costs is not None:
                costs = costs.new_zeros(len(part), len(self.classes)).index_copy_(1, number, costs)
            return replace(part, x=x, y=number[part.y], normalization=self.input.normalization, costs=costs)

        train, validation, test = map(known, (splits.train, splits.validation, splits.test))
        return replace(splits, train=train, validation=validation, test=test, classes=self.classes, columns=columns)

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

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """All of it or nothing; what `folder` had before is replaced, files of others stay."""
        member = self.members[0]
        if member.architecture is None:
            raise InputError(
                "the network cannot be built again from a file: give architecture='package.module:factory' (and arguments) "
                "to Classifier.of, or export it as ONNX, which needs neither"
            )
        built = sketch(member.architecture, len(self.classes), member.arguments, "the classifier", trust=True)
        if differences := misfits(built, member.model.state_dict()):
            raise InputError(
                f"{member.architecture} with {dict(member.arguments)} builds another network: {differences}"
            )
        arrays: dict[str, Any] = {"trained_on": self.trained_on}
        if self.costs is not None:
            arrays["costs"] = self.costs.values
        if self.evidence is not None:
            arrays |= self.evidence.arrays
        with replaced(Path(folder)) as new:
            weights.save(member.model, new / WEIGHTS)
            content = arrays_as_bytes({name: np.ascontiguousarray(values) for name, values in arrays.items()})
            (new / ARRAYS).write_bytes(content)
            manifest: dict[str, Any] = plain(
                _Manifest(
                    FORMAT,
                    (_Member(member.architecture, dict(member.arguments), WEIGHTS, sha256(new / WEIGHTS)),),
                    self.views,
                    self.input,
                    self.classes,
                    self.decision,
                    self.training,
                    None if self.evidence is None else replace(self.evidence, arrays={}),
                    sha256(content),
                )
            )
            write_json(new / CONFIG, manifest | {"sha256": _digest(manifest)})
            if self.costs is not None:
                self.costs.to_csv(new / "costs.csv")
            if self.evidence is not None:
                (new / "README.md").write_text(card(self.evidence, str(self.input)), encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: torch.device | str = "cpu", trust: bool = False
    ) -> Classifier:
        """trust=True lets the folder name a factory of its own, which is code that runs."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        arrays = _tensors(folder / ARRAYS, manifest.arrays, load_arrays)
        (member,) = manifest.members
        state = _tensors(folder / WEIGHTS, member.sha256, load_tensors)
        where = str(folder / CONFIG)
        try:
            evidence = _complete(manifest.evidence, arrays)
            model = rebuild(member.architecture, len(manifest.classes), member.arguments, state, where, trust)
            return cls(
                (Member(model.to(device), member.architecture, member.arguments),),
                manifest.input,
                manifest.classes,
                CostMatrix(arrays["costs"], manifest.classes) if "costs" in arrays else None,
                manifest.decision,
                manifest.views,
                arrays.get("trained_on", np.empty(0, np.uint64)),
                manifest.training,
                evidence,
            )
        except InputError as error:
            raise InputError(str(error) if where in str(error) else f"{folder}: {error}; fit the model again") from None

    def export(self, path: str | os.PathLike[str], dtype: str | None = None) -> Exported:
        """One ONNX file: stored samples in, decisions out, on any machine with onnxruntime."""
        from csada.shipping.export import export

        card = {"data": self.training.data, "model": self.training.model} if self.training else {}
        return export(self.network, self.input, self.input.normalization, self.rule, path, dtype, card)


def described(folder: str | os.PathLike[str]) -> tuple[Training | None, Evidence | None]:
    """How a saved classifier was trained and what is known about it, without reading or building its network."""
    manifest = _read_manifest(folder := Path(folder))
    arrays = _tensors(folder / ARRAYS, manifest.arrays, load_arrays) if manifest.evidence else {}
    try:
        return manifest.training, _complete(manifest.evidence, arrays)
    except InputError as error:
        raise InputError(f"{folder}: {error}; fit the model again") from None


def _complete(evidence: Evidence | None, arrays: Mapping[str, Any]) -> Evidence | None:
    return evidence and replace(evidence, arrays={k: v for k, v in arrays.items() if k != "trained_on"})


@dataclass(frozen=True)
class _Member:
    architecture: str
    arguments: dict[str, Any]
    file: str
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    """model.json"""

    format: int
    members: tuple[_Member, ...]
    views: tuple[Literal["identity"], ...]
    input: Input
    classes: tuple[str, ...]
    decision: Decision
    training: Training | None
    evidence: Evidence | None
    arrays: str  # the hash of that file

    def __post_init__(self) -> None:
        if len(self.members) != 1 or self.members[0].file != WEIGHTS:
            raise InputError(f"members are {len(self.members)}; one, with its weights in {WEIGHTS}, is needed")


def _read_manifest(folder: Path) -> _Manifest:
    file = folder / CONFIG
    if not file.exists():
        raise InputError(f"{folder} is no saved model: it has no {CONFIG}; csada train and csada fit write one")
    values = parse_json(read_text(file), str(file))
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{file} is of format {found!r}, this version of csada reads {FORMAT}; train the model again with csada train"
        )
    if values.pop("sha256", None) != _digest(values):
        raise InputError(
            f"{file} was changed after it was written; copy the whole folder again, or fit the model again"
        )
    manifest: _Manifest = build(_Manifest, values, str(file))
    return manifest


def _digest(values: dict[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode())


def _tensors(path: Path, digest: str, load: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    content = read_bytes(path, MOST)
    if sha256(content) != digest:
        raise InputError(f"{path} is damaged: it is not the file that {CONFIG} describes; copy the whole folder again")
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
