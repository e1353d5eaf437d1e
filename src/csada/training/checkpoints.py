"""A run that was stopped resumes: its state in one file that knows which run it belongs to, and whether it is whole."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from csada.data.batches import Data
from csada.data.splits import Batch, Part
from csada.errors import InputError
from csada.files import whole
from csada.methods import Method
from csada.models.weights import DAMAGED, unpickled
from csada.reading import build, read_bytes
from csada.training.settings import Settings

MAGIC = b"csada checkpoint\n"
log = logging.getLogger("csada")

Epoch = dict[str, Any]  # one line of a history: epoch, loss, lr, seconds, and whatever on_epoch adds


def digest(*values: object) -> str:
    """One hash of all: of every byte of a tensor, of anything else as it prints."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


@dataclass(frozen=True)
class Origin:
    """What must agree for a checkpoint to be continued."""

    settings: str
    method: str
    start_weights: str
    data: str

    @classmethod
    def of(cls, settings: Settings, method: Method, model: nn.Module, data: Data, first: Batch) -> Origin:
        """Of a loader, whose samples may be too many to read twice, the first batch stands for all."""
        options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
        costs = digest(torch.tensor(method.costs.values))
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        weights = (value for item in model.state_dict().items() for value in item)
        samples: list[object] = [type(data).__name__, len(data), *first]
        if isinstance(data, Part):  # its fields alone: what it has computed and kept since is no other data
            samples = [getattr(data, f.name) for f in dataclasses.fields(data)]
        told = f"{type(method).__name__} {options | {'costs': costs}}"
        return cls(str(settings), told, digest(trained, *weights), digest(*samples))


@dataclass(frozen=True)
class Checkpoint:
    """What a stopped run needs to resume."""

    origin: Origin
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    history: list[Epoch]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """A file that begins with MAGIC and the hash of the rest."""
    try:
        history = json.dumps(checkpoint.history, default=_plain)
    except TypeError as error:
        raise InputError(
            f"on_epoch returned what a checkpoint cannot hold ({error}); return numbers, texts, and lists of them"
        ) from None
    body = io.BytesIO()
    torch.save(vars(checkpoint) | {"origin": vars(checkpoint.origin), "history": history}, body)
    with whole(path) as partial, partial.open("wb") as file:
        file.write(MAGIC + hashlib.sha256(body.getbuffer()).digest())
        file.write(body.getbuffer())


def _plain(value: Any) -> Any:
    """Arrays, tensors and their numbers as Python's own."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a {type(value).__name__}")
    return value.tolist()


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """None where the file is damaged; a file of another kind is an error, so that nobody's is overwritten."""
    content = memoryview(read_bytes(path, "weights"))
    start, body = content[: len(MAGIC)], content[len(MAGIC) + 32 :]
    if not MAGIC.startswith(start):
        raise InputError(f"{path} is not a checkpoint of csada; give another file, or remove it")
    try:
        if content[len(MAGIC) : len(MAGIC) + 32] != hashlib.sha256(body).digest():
            raise InputError("its hash is another one")
        state = unpickled(body, device)
        found: Checkpoint = build(Checkpoint, state | {"history": json.loads(state["history"])}, "it")
        for line in found.history:
            build(dict[str, float], {key: line.get(key) for key in ("epoch", "loss", "lr", "seconds")}, "its history")
        return found
    except DAMAGED as error:  # of another version of PyTorch, too
        damaged(path, str(error))
        return None


def damaged(path: Path, why: str) -> None:
    log.warning("%s is damaged: the run starts anew (%s)", path, " ".join(why.split())[:200])
