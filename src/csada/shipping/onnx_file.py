"""An exported file, opened: what it says of itself, and its decisions. Needs onnxruntime and NumPy, no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from numpy.typing import NDArray

from csada.bounds import most
from csada.costs import CostMatrix
from csada.errors import InputError
from csada.reading import build, parse_json, read_bytes, sha256
from csada.sample import Sample

METADATA, FORMAT = "csada", 4  # where a file's own description is, and which one this version reads
INPUTS = ("input", "categories")  # the second only where a table has categorical columns
OUTPUTS = {
    "class": "[N] int64: the number of the decision in `classes`, the least of `criterion`; of those that tie, the likeliest",
    "probability": "[N] float64: of the decision, calibrated",
    "expected_cost": "[N] float64: of the decision, in units of `costs`",
    "refer": "[N] bool: whether a person should decide, since the expected cost is above the limit",
    "probabilities": "[N, K] float64: of each class, calibrated",
    "expected_costs": "[N, K] float64: of deciding for each class, probabilities @ costs",
    "criterion": "[N, K] float64: what the decision has least of",
}
SEAL = re.compile(rb'"sha256": "([0-9a-f]{64})"')  # in the description: the hash of the file with zeros in its place
FATAL = 4  # what is less, onnxruntime raises too, and its log would come before our one line
UNSEALED = "0" * 64

WIDE = ("probabilities", "expected_costs", "criterion")

Array = NDArray[Any]
Decide = Callable[..., Sequence[Array]]  # samples [N, ...] as stored, of a table also words [N, m] -> OUTPUTS


@dataclass(frozen=True)
class About:
    """What an exported file says of itself."""

    format: int
    csada: str
    classes: tuple[str, ...]
    input: Sample
    prepared: dict[str, str]  # how a sample becomes what the file takes, in words
    outputs: dict[str, str]  # what each says, in words
    # decision and costs are to be read; the graph itself decides; a machine that predicts needs no SciPy
    decision: dict[str, Any]
    costs: tuple[tuple[float, ...], ...]
    card: dict[str, Any]
    referral_cost: float | None = None  # of leaving a case to a person; in units of `costs`, None: not given
    sha256: str = UNSEALED

    def __post_init__(self) -> None:
        CostMatrix(self.costs, self.classes, self.referral_cost)  # refuses what does not fit together


def raised() -> tuple[type[Exception], ...]:
    """By onnxruntime: errors of its own, which share no base but Exception, and what becomes of those of C++ and NumPy."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [each for each in vars(state).values() if isinstance(each, type) and issubclass(each, Exception)]
    return RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, *own


def sealed(content: bytes) -> bytes:
    """The file with the hash of all the rest in its description."""
    blank = SEAL.sub(f'"sha256": "{UNSEALED}"'.encode(), content)
    return SEAL.sub(f'"sha256": "{sha256(blank)}"'.encode(), content)


def open_onnx(path: Path, gpu: bool | None) -> tuple[About, Decide]:
    """gpu: whether to use one; None: where onnxruntime has one."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{path} needs onnxruntime: pip install 'csada[onnx]'") from None
    there = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if gpu and not there:
        raise InputError("onnxruntime finds no GPU; leave out --device, or set it to cpu")
    providers = ["CUDAExecutionProvider"] * bool(there and gpu is not False) + ["CPUExecutionProvider"]
    content = read_bytes(path, "weights")
    if len(SEAL.findall(content)) != 1 or sealed(content) != content:
        described = METADATA.encode() in content
        why = "is damaged, or of an older csada: its hash is wrong" if described else "was not written by csada"
        raise InputError(f"{path} {why}; use csada export")
    try:
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = FATAL
        # to open a file computes nothing: constants that a few kB describe may take hours, and PyTorch folded those of ours
        session = onnxruntime.InferenceSession(content, quiet, providers, disabled_optimizers=["ConstantFolding"])
        text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    except raised() as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is no ONNX file that onnxruntime can open: {reason}") from None
    if text is None:
        raise InputError(f"{path} was not written by csada: it does not describe itself; use csada export")
    values = parse_json(text, str(path))
    if (found := values.get("format") if isinstance(values, dict) else None) != FORMAT:
        raise InputError(f"{path} is of format {found!r}, this csada reads {FORMAT}; export the model again")
    about: About = build(About, values, str(path))
    return about, lambda *given: _decided(session, str(path), len(about.classes), given)


def _decided(session: Any, path: str, classes: int, given: Sequence[Array]) -> Sequence[Array]:
    """OUTPUTS, of the shapes and within the bounds that they should have; a graph that never ends is ended."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = FATAL
    limit = Timer(most("seconds"), setattr, (options, "terminate", True))
    limit.start()
    try:
        found = session.run(list(OUTPUTS), dict(zip(INPUTS, given, strict=False)), options)
    except raised() as error:
        raise InputError(f"{path} cannot decide these samples: {' '.join(str(error).split())[:200]}") from None
    finally:
        limit.cancel()
    n = len(given[0])
    for name, values in zip(OUTPUTS, found, strict=True):
        kind = {"class": "i", "refer": "b"}.get(name, "f")
        shape = (n, classes) if name in WIDE else (n,)
        if getattr(values, "shape", None) != shape or values.dtype.kind != kind:
            raise InputError(f"{path} is damaged: its output {name} is not {OUTPUTS[name].partition(':')[0]}")
    if n and not 0 <= found[0].min() <= found[0].max() < classes:
        raise InputError(f"{path} is damaged: it decides for class {found[0].max()} of {classes}")
    return found  # type: ignore[no-any-return]
