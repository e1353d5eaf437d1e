"""The most that csada reads: no file of a stranger fills the memory, or takes for ever.

CSADA_BOUNDS raises some, as in `CSADA_BOUNDS=classes=20000,columns=100000`; so does `csada --bound classes=20000 COMMAND`.
"""

from __future__ import annotations

import os

from csada.errors import InputError

VARIABLE = "CSADA_BOUNDS"
BOUNDS = {
    "pixels": 178_956_970,  # of an image, decoded; beyond, Pillow warns, and from twice as many on it refuses
    "side": 65_535,  # pixels of the longer side of an image: JPEG's own limit
    "image": 2**28,  # bytes of an image file
    "text": 2**26,  # bytes of a file of JSON, TOML or costs
    "table": 2**30,  # bytes of a CSV file that is read whole
    "rows": 20_000_000,  # of a table that is read whole
    "line": 2**24,  # letters of one line of it
    "cells": 2**28,  # of a Parquet file: rows times columns
    "group": 2**29,  # bytes of a column in a row group of one, unpacked
    "columns": 20_000,
    "classes": 5_000,
    "shards": 100_000,  # tar files of one data set
    "members": 2_000_000,  # files in one of them
    "stored": 200_000,  # files of runs at a URL
    "groups": 1_000,  # of samples, that `csada check` judges one by one
    "limits": 25_000,  # that are judged together; each in every group of `csada check` counts
    "answers": 5_000,  # comparisons of one expert
    # bytes of a file of MNIST, of a batch of CIFAR-10 or of its archive, unpacked; CIFAR-10 has 70 % of that
    "archive": 2**28,
    "scores": 2**33,  # bytes of the arrays of an .npz file of scores
    "levels": 100,  # of lists and tables inside each other, in JSON and TOML
    "weights": 2**36,  # bytes of a file of weights, of arrays, of a checkpoint or of an exported model
    "device": 2**33,  # bytes of the samples that are kept on a GPU; what is larger is streamed
    "seconds": 600,  # that an exported model may take for one batch
}


def most(name: str) -> int:
    return {**BOUNDS, **raised(os.environ.get(VARIABLE, ""))}[name]


def raised(text: str) -> dict[str, int]:
    """NAME=NUMBER, with commas between."""
    found = {}
    for each in filter(None, text.replace(" ", "").split(",")):
        name, _, number = each.partition("=")
        if name not in BOUNDS or not (number.isdecimal() and 0 < len(number) < 19):
            raise InputError(f"the bound {each[:80]!r} is not NAME=NUMBER; names: {', '.join(BOUNDS)}")
        found[name] = int(number)
    return found


def check(name: str, found: int, what: str, *, more: bool = False) -> None:
    """Refuses more than `most`; `what` says what was found. more: nobody knows how much follows."""
    if found > (limit := most(name)):
        enough = "NUMBER" if more else found
        raise InputError(f"{what}; at most {limit:,} are read (csada --bound {name}={enough} allows more)")
