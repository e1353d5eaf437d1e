"""A classifier as one ONNX file: weights, normalisation and decision rule in the graph, everything else in its metadata.

The file runs wherever onnxruntime does, without csada and without PyTorch, and says itself what it takes and returns.
It gets its name only after onnxruntime has decided as PyTorch does.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import csada
from csada.costs import CostMatrix
from csada.data.augment import Normalization
from csada.decisions import Abstention, Decision, MinimumExpectedCost, mean_cost
from csada.errors import InputError, RunError, explained
from csada.files import whole
from csada.pixels import MODES, STEPS
from csada.reading import plain
from csada.rows import MISSING, encoded
from csada.sample import Dtype, Sample
from csada.shipping.graph import Deployed
from csada.shipping.onnx_file import FORMAT, METADATA, OUTPUTS, About, sealed

OPSET = 20  # onnxruntime 1.17 and later
AGREES = 1e-4  # probabilities, and costs in units of the costliest mistake: networks differ in float32


@dataclass(frozen=True)
class Exported:
    """What was written, and the largest difference between the file and PyTorch."""

    about: About
    bytes: int
    difference: float


def export(
    network: nn.Module,
    sample: Sample,
    normalization: Normalization,
    rule: MinimumExpectedCost | Abstention,
    path: str | os.PathLike[str],
    dtype: str | None = None,
    card: Mapping[str, Any] | None = None,
) -> Exported:
    """Write the file `path`. dtype: of the samples that it takes, uint8 or float32 in the same units; by default as stored."""
    try:
        import onnx_ir.passes.common as passes
        import onnxruntime
        import onnxscript  # noqa: F401 - what PyTorch's exporter needs
    except ImportError as error:
        raise InputError(f"export needs {error.name}: pip install 'csada[onnx]'") from None
    path, known = Path(path), typing.get_args(Dtype)
    if dtype not in (None, *known):
        raise InputError(f"unknown input {dtype!r}; known: {', '.join(known)}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file to write, such as {path / 'model.onnx'}")
    if sample.columns and dtype == "uint8":
        raise InputError(
            "a table holds numbers with decimals and missing ones; leave out --input, or set it to float32"
        )
    takes = Sample(sample.shape, typing.cast(Dtype, dtype or sample.dtype), sample.columns, sample.categories)
    inner = rule.rule if isinstance(rule, Abstention) else rule
    costs = inner.costs
    if not isinstance(costs, CostMatrix):
        raise InputError("a rule with costs for each sample cannot be exported; only one with a cost matrix")
    decision = plain(Decision.of(rule))
    unit = mean_cost(costs)
    criterion = f"{inner.strength:g} * expected_costs + {1 - inner.strength:g} * {unit:g} * (1 - probabilities)"
    criterion += "" if inner.multipliers is None else " + probabilities @ decision.multipliers"
    about = About(
        FORMAT,
        csada.__version__,
        costs.classes,
        takes,
        _prepared(takes, normalization),
        OUTPUTS | {"criterion": f"{OUTPUTS['criterion']}: {criterion}"},
        decision,
        costs.values.tolist(),
        dict(card or {}),
        costs.referral_cost,
    )
    deployed = Deployed(copy.deepcopy(network).cpu(), takes, normalization, rule).eval().requires_grad_(False)
    with _quiet():
        program = torch.onnx.export(
            deployed,
            (samples(deployed, 2)[0],),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["input"],
            output_names=tuple(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    passes.ClearMetadataAndDocStringPass()(program.model)  # it names files of the machine that exported
    if takes.categories:
        _take_words(program.model, takes, normalization.fill)
    program.model.metadata_props[METADATA] = json.dumps(plain(about))
    with explained(f"{path} cannot be written", "what was there before is kept", RunError), whole(path) as partial:
        program.save(partial, external_data=False)
        partial.write_bytes(sealed(partial.read_bytes()))
        session = onnxruntime.InferenceSession(partial, providers=["CPUExecutionProvider"])
        every = max(5, *(len(known) + len(MISSING) + 1 for known in takes.categories), 0)  # words, each once
        difference = max(compare(session, deployed, *samples(deployed, n, seed=n)) for n in (1, every))
    return Exported(about, path.stat().st_size, difference)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's talk about packages that are absent and functions that it should not use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _prepared(sample: Sample, normalization: Normalization) -> dict[str, str]:
    """How a picture or a row becomes what the file takes. Normalisation, filling in and encoding are inside."""
    if not sample.is_row:
        channels, height, width = sample.shape
        most = f"0 to {normalization.scale:g}" if normalization.scale != 1 else "as in training"
        found = {"layout": "NCHW", "size": f"{height} x {width}", "values": f"{sample.dtype}, {most}"}
        if channels in MODES:
            found |= {"colours": {"L": "grey"}.get(MODES[channels], MODES[channels]), "picture": "; ".join(STEPS)}
        return found
    found = {
        "input": f"[N, {sample.numbers}] {sample.dtype}: "
        + (", ".join((sample.columns or ())[: sample.numbers]) or "features")
    }
    if sample.categories:
        pairs = zip(sample.categorical, sample.categories, strict=True)
        listed = "; ".join(f"{name} is one of {', '.join(known)}" for name, known in pairs)
        found["categories"] = f"[N, {len(sample.categories)}] text: {listed}; any other word is none of them"
    if normalization.fill:
        by_column: dict[str, str] = {}
        for (name, category), value in zip(sample.features, normalization.fill, strict=True):
            if not category or value:
                by_column[name] = category or f"{value:g}"
        usual = ", ".join(f"{name} {value}" for name, value in by_column.items())
        signs = " or ".join(map(repr, MISSING))
        found["missing"] = (
            f"NaN in input, {signs} in categories; the training part's median or most frequent word stands for it: {usual}"
        )
    return found


def _take_words(model: Any, sample: Sample, fill: Sequence[float]) -> None:
    """The graph takes numbers [N, n] and words [N, m] in place of features [N, n + categories]: `encoded` in ONNX."""
    import onnx_ir as ir

    graph, tape = model.graph, ir.tape.Tape()
    (features,) = graph.inputs
    batch, n = features.shape[0], sample.numbers
    numbers = ir.val("input", ir.DataType.FLOAT, ir.Shape([batch, n]))
    words = ir.val("categories", ir.DataType.STRING, ir.Shape([batch, len(sample.categories)]))
    blocks = [numbers]
    for j, known in enumerate(sample.categories):
        usual = int(np.argmax(fill[n : n + len(known)]))
        keys = {**dict.fromkeys(MISSING, usual), **{word: k for k, word in enumerate(known)}}
        column = tape.op("Gather", [words, tape.op("Constant", [], {"value": ir.tensor(np.array([j]))})], {"axis": 1})
        table: dict[str, Any] = {"keys_strings": list(keys), "values_int64s": list(keys.values()), "default_int64": -1}
        code = tape.op("LabelEncoder", [column], table, domain="ai.onnx.ml")
        places = tape.op("Constant", [], {"value": ir.tensor(np.arange(len(known))[None])})
        blocks.append(tape.op("Cast", [tape.op("Equal", [code, places])], {"to": int(ir.DataType.FLOAT)}))
        n += len(known)
    whole = tape.op("Concat", blocks, {"axis": 1})
    features.replace_all_uses_with(whole)
    graph.insert_before(graph[0], tape.nodes)
    graph.inputs[:] = [numbers, words]
    model.opset_imports["ai.onnx.ml"] = 3


def samples(deployed: Deployed, n: int, seed: int = 0) -> tuple[torch.Tensor, dict[str, Any]]:
    """Random samples [n, ...] that look, to the normalisation, like those of training; and the same as a file takes them.

    Of a table some numbers are missing. Words are all categories in turn, the signs of a missing one, and an unknown one.
    """
    generator, sample = torch.Generator().manual_seed(seed), deployed.sample
    noise = torch.randn((n, *sample.shape), generator=generator)
    x = (noise - deployed.offset) / deployed.factor
    if sample.dtype == "uint8":
        x = x.round().clamp(0, 255).to(torch.uint8)
    if len(deployed.fill):
        x[torch.rand(x.shape, generator=generator) < 0.2] = torch.nan
    if not sample.categories:
        return x, {"input": x.numpy()}
    choices = [(*known, *MISSING, f"{''.join(known)}.") for known in sample.categories]
    words = np.array([[each[i % len(each)] for each in choices] for i in range(n)], object)
    numbers = x[:, : sample.numbers].numpy()
    return torch.from_numpy(encoded(numbers, words, sample.categories)).float(), {"input": numbers, "categories": words}


def compare(session: Any, deployed: Deployed, x: torch.Tensor, given: Mapping[str, Any] | None = None) -> float:
    """The largest difference between the file and PyTorch; a RunError where the file would decide otherwise.

    given: what the file takes, where that is not x itself.
    """
    with torch.inference_mode():
        ours = dict(zip(OUTPUTS, (value.numpy() for value in deployed(x)), strict=True))
    found = dict(zip(OUTPUTS, session.run(list(OUTPUTS), given or {"input": x.numpy()}), strict=True))
    charged = 0.0 if deployed.added is None else deployed.added.numpy()
    unit, rows = max(1.0, float((deployed.costs.numpy() + charged).max())), np.arange(len(x))
    chosen, expected, criterion = (ours[name] for name in ("class", "expected_costs", "criterion"))
    same = found["class"] == chosen
    differences = [
        np.abs(found[name] - ours[name]) / scale
        for name, scale in (("probabilities", 1.0), ("expected_costs", unit), ("criterion", unit))
    ]
    differences += [
        np.abs(found[name] - ours[name])[same] / scale
        for name, scale in (("probability", 1.0), ("expected_cost", unit))
    ]
    difference = float(np.max([values.max(initial=0) for values in differences]))  # NaN stays
    tied = np.abs(criterion[rows, found["class"]] - criterion[rows, chosen]) < AGREES * unit
    doubt = (expected + ours["probabilities"] @ charged if deployed.added is not None else expected)[rows, chosen]
    close = np.abs(doubt - deployed.limit) < AGREES * unit
    if not (difference < AGREES and (same | tied).all() and ((found["refer"] == ours["refer"]) | close | ~same).all()):
        raise RunError(
            f"the exported model does not decide as PyTorch does (largest difference {difference:.2g}); nothing was written"
        )
    return difference
