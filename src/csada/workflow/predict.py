"""Decisions on new inputs, batch by batch: a folder may hold more images than there is memory.

A model is a saved classifier or an exported ONNX file. For the latter nothing here needs PyTorch.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada import tars
from csada.bounds import most
from csada.errors import InputError, check_known
from csada.files import read_bytes
from csada.logbook import Log
from csada.pixels import MODES, SUFFIXES, square
from csada.rows import decimal_sign, encoded, number_or_nan, read_rows
from csada.rows import unknown as unknown_words
from csada.sample import Sample
from csada.shipping.onnx_file import Decide, open_onnx

IMAGES, ROWS = 64, 4096  # decided at once

Array = NDArray[Any]
Prediction = dict[str, Any]
Read = tuple[Array, bytes]  # a sample, and the content that it was made from
Source = Iterator[tuple[str | int, Callable[[], Read]]]  # a sample's name, and how it is read


@dataclass(frozen=True)
class Model:
    """A saved classifier or an exported file. `decide`: what the file takes -> OUTPUTS of csada.shipping.onnx_file."""

    classes: tuple[str, ...]
    input: Sample
    decide: Decide
    fingerprint: str = ""  # of the classifier, for a log

    def columns(self, every: bool = False) -> list[str]:
        """What `predict` says of a sample, in this order; `error` instead of the others where it cannot be read."""
        by_class = ("probability", "expected_cost", "criterion") if every else ()
        more = [f"{what}_{name}" for what in by_class for name in self.classes]
        first = "row" if self.input.is_row else "file"
        return [first, "class", "probability", "expected_cost", "refer", *more, "error"]


def open_model(path: str | os.PathLike[str], device: str | None = None, *, trust: bool = False) -> Model:
    """A classifier's folder or an exported file; by default on the GPU if there is one."""
    if device is not None:
        check_known("device", device, ("cpu", "cuda"))
    path = Path(path)
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; give a folder written by csada fit or a file written by csada export")
    if path.is_dir():
        return _saved(path, device, trust)
    about, decide = open_onnx(path, None if device is None else device == "cuda")
    return Model(about.classes, about.input, decide, str(about.card.get("fingerprint", "")))


def _saved(path: Path, device: str | None, trust: bool) -> Model:
    import torch

    from csada.classifier import Classifier
    from csada.manifest import deployed

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no GPU; leave out --device, or set it to cpu")
    classifier = Classifier.load(path, device=device or ("cuda" if torch.cuda.is_available() else "cpu"), trust=trust)
    known = classifier.input.categories
    return Model(
        classifier.classes,
        classifier.input,
        lambda x, words=None: classifier.decide(x if words is None else encoded(x, words, known)),
        deployed(path).fingerprint,
    )


def predict(
    model: Model,
    inputs: Sequence[str | os.PathLike[str]],
    batch_size: int | None = None,
    every: bool = False,
    unknown: Counter[str] | None = None,
    log: Log | None = None,
) -> Iterator[Prediction]:
    """A row for every image in `inputs` (files, and folders of them), or for every row of a CSV file, in order.

    Probability and expected cost are those of the decision. A sample that cannot be read becomes a row with its name and an
    `error`. every: also those of each class, and the criterion of which the decision has least (the expected cost where
    the rule's strength is 1).
    unknown: counts, by column, the words of a table that training did not have. log: has each decision before its row comes.
    """
    paths = [Path(path) for path in inputs]
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"{path} does not exist; give {'a CSV file' if model.input.is_row else 'images or folders'}"
            )
    source = _table(paths, model.input) if model.input.is_row else _images(paths, model.input)
    size = batch_size or default_batch(model)
    return _predict(model, source, size, every, Counter() if unknown is None else unknown, log)


def default_batch(model: Model) -> int:
    if model.input.is_row:
        return ROWS
    return max(1, min(IMAGES, most("pixels") // math.prod(model.input.shape[1:])))


def open_log(path: Path, model: Model) -> Log:
    if not model.fingerprint:
        raise InputError("the model's file has no fingerprint, by which a log knows its model; export the model again")
    return Log(path, model.fingerprint, model.classes)


def _predict(
    model: Model, source: Source, batch_size: int, every: bool, unknown: Counter[str], log: Log | None
) -> Iterator[Prediction]:
    name, *fields = model.columns(every)[:-1]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        side_by_side = map if model.input.is_row else pool.map  # Pillow decodes outside the interpreter's lock
        while chunk := list(islice(source, batch_size)):
            samples = list(side_by_side(_read, (read for _, read in chunk)))
            good = [x for x in samples if not isinstance(x, str)]
            found = model.decide(*_arrays([x for x, _ in good], model.input, unknown)) if good else ()
            if log is not None and good:
                log.write(found, [content for _, content in good])
            decided = zip(*found, strict=True)
            for (which, _), sample in zip(chunk, samples, strict=True):
                if isinstance(sample, str):
                    yield {name: which, "error": sample}
                    continue
                k, p, cost, refer, *by_class = next(decided)
                if not (math.isfinite(p) and np.isfinite(by_class).all()):
                    yield {name: which, "error": "the model's scores are no numbers; check its weights and this input"}
                    continue
                numbers = [p, cost, *(np.ravel(by_class) if every else ())]
                p, cost, *more = (float(f"{number:.6g}") for number in numbers)
                yield {name: which, **dict(zip(fields, [model.classes[k], p, cost, bool(refer), *more], strict=True))}


def _arrays(samples: Sequence[Array], given: Sample, unknown: Counter[str]) -> tuple[Array, ...]:
    """Samples, and of a table with categorical columns numbers and words."""
    if not given.categories:
        return (np.array(samples, dtype=given.dtype),)
    numbers, words = np.split(np.array(samples, object), [given.numbers], axis=1)
    unknown += unknown_words(given.categorical, words, given.categories)
    return numbers.astype(given.dtype), words


def _read(read: Callable[[], Read]) -> Read | str:
    """The sample, or why there is none."""
    try:
        return read()
    except (OSError, ValueError, MemoryError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def files(paths: Sequence[Path], seen: set[Path] | None = None) -> Iterator[Path]:
    """The files as they are given, and the images in the folders and the folders in them, sorted; hidden ones not.

    A folder is visited once, however many links lead to it.
    """
    seen = set() if seen is None else seen
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        if (place := path.resolve()) in seen:
            continue
        seen.add(place)
        try:
            entries = [(e, e.is_dir()) for e in sorted(path.iterdir()) if not e.name.startswith(".")]
        except OSError:
            yield path  # it becomes a row with an error, as any file that cannot be read
            continue
        for entry, folder in entries:
            if folder:
                yield from files([entry], seen)
            elif entry.suffix.lower() in (*SUFFIXES, tars.SUFFIX):
                yield entry


def _images(paths: Sequence[Path], given: Sample) -> Source:
    channels, height, width = given.shape
    if channels not in MODES or height != width:
        raise InputError(
            f"the model takes samples of {channels} x {height} x {width}; images are read as squares, grey or RGB"
        )

    def pixels(found: Path | bytes | InputError) -> Read:
        if isinstance(found, InputError):
            raise found
        content = read_bytes(found, most("image")) if isinstance(found, Path) else found
        return square(content, width, channels), content

    def every() -> Iterator[tuple[str, Path | bytes | InputError]]:
        """Files, the images in tar files, and what is wrong with these."""
        for path in files(paths):
            if path.suffix != tars.SUFFIX:
                yield str(path), path
                continue
            try:
                yield from ((f"{path}:{member.name}", it) for member, it in tars.walk(str(path), labels=False))
            except InputError as error:
                yield str(path), error

    return ((name, partial(pixels, found)) for name, found in every())


def _table(paths: Sequence[Path], given: Sample) -> Source:
    if len(paths) > 1:
        raise InputError(f"the model takes rows of a table: give one CSV file, not {len(paths)} inputs")
    lines = read_rows(paths[0])
    _, header = next(lines, (0, []))
    features, columns = given.shape[0], given.columns
    if columns is None:  # by their place; a last one more is the label, as in training
        columns = tuple(header[:features]) if len(header) in (features, features + 1) else None
        if columns is None:
            raise InputError(f"{paths[0]} has {len(header)} columns; the model takes {features} features")
    for name in columns:
        if header.count(name) != 1:
            found = "no column" if name not in header else "several columns"
            raise InputError(f"{paths[0]} has {found} {name!r}; the model takes {', '.join(columns)}")
    places = {name: header.index(name) for name in columns}
    read = partial(_cells, places, given.categorical, len(header), decimal_sign(paths[0]))
    return ((number, partial(read, line, row)) for number, (line, row) in enumerate(lines, start=1))


def _cells(
    places: Mapping[str, int], words: Sequence[str], width: int, decimal: str, line: int, row: Sequence[str]
) -> Read:
    if len(row) != width:
        raise ValueError(f"line {line} has {len(row)} values; the header has {width} columns")
    cells = {name: row[place] for name, place in places.items()}
    found = [cell if name in words else number_or_nan(line, name, cell, decimal) for name, cell in cells.items()]
    return np.array(found, object if words else float), ",".join(cells.values()).encode()
