"""An exported file, opened: what it says of itself, and its decisions. Needs onnxruntime and NumPy, no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from csada.errors import InputError
from csada.reading import build, parse_json, read_bytes
from csada.sample import Sample

METADATA, FORMAT = "csada", 3  # where a file's own description is, and which one this version reads
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
MOST = 2**34  # bytes

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
    decision: dict[
        str, Any
    ]  # and the costs: to be read; the graph itself decides; a machine that predicts needs no SciPy
    costs: tuple[tuple[float, ...], ...]
    card: dict[str, Any]
    referral_cost: float | None = None  # of leaving a case to a person; in units of `costs`, None: not given


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
    content = read_bytes(path, MOST)
    try:
        session = onnxruntime.InferenceSession(content, providers=providers)
        text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    except Exception as error:  # onnxruntime's exceptions share no other base
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is no ONNX file that onnxruntime can open: {reason}") from None
    if text is None:
        raise InputError(f"{path} was not written by csada: it does not describe itself; use csada export")
    values = parse_json(text, str(path))
    if (found := values.get("format") if isinstance(values, dict) else None) != FORMAT:
        raise InputError(f"{path} is of format {found!r}, this csada reads {FORMAT}; export the model again")
    about: About = build(About, values, str(path))
    return about, lambda *given: session.run(list(OUTPUTS), dict(zip(INPUTS, given, strict=False)))
