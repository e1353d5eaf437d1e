"""What may happen to a file: any change of its bytes or of its place, and changes of what it says that keep it well formed."""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import os
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

MAGIC = b"csada checkpoint\n"

Change = Callable[[Path, Random], str]  # makes it, and says what it was

NUMBERS = (-1, 0, 1, 1.5, 2**31, 2**63, 10**400, 1e308, -1e308, 5e-324, True)
TEXTS = (
    "",
    " ",
    "x" * 5000,
    "../../../outside",
    "/dev/zero",
    "\x1b[31mred\x07",
    "\ud800",
    "=1+1",
    "*",
    "low",
    "nan",
    "a\nb",
    "\0",
    "🧪",
)
VALUES: tuple[Any, ...] = (None, [], {}, [[]], {"": []}, [1, "a"], [1e308] * 3, ["low", "low"], *NUMBERS, *TEXTS)
LITERALS = (
    "[]",
    "{}",
    '""',
    "-1",
    "0",
    "1.5",
    "nan",
    "-inf",
    "1e400",
    "99999999999999999999",
    "true",
    "1979-05-27",
    "'x'",
    f"'{'x' * 5000}'",
    "'\\u001b[31m'",
    "[[1]]",
    "{a = {b = []}}",
    "'/dev/zero'",
    "'..'",
    "[1, 'a']",
    "'high'",
)


EXPERIMENT = (
    *("title", "data", "model", "costs", "pairs", "methods", "lambdas", "matrices", "replications", "seconds", "fresh"),
    *(
        "replications_elsewhere",
        "data_scale",
        "data_options",
        "baseline",
        "options",
        "options.every",
        "runs_of",
        "smoke",
    ),
    *("recipe", "baseline.recipe", "baseline.epochs", "options.csada.weight", "track", "name", "variant"),
)


def bytes_of(path: Path, rng: Random) -> str:
    """A few changes of bytes: flipped bits, cuts, repeats, insertions, numbers at the edges of their range."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) or 1)
        length = rng.choice((1, 2, 4, 8, 64, 1000))
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = rng.randbytes(length)
        elif kind == 3:
            data[at : at + length] = data[at : at + length] * rng.choice((2, 3, 200))
        elif kind == 4:
            data[at : at + 4] = struct.pack(rng.choice(("<I", ">I")), rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)))
        elif kind == 5:
            del data[at:]
        else:
            data[at : at + 1] = bytes([rng.choice((0, 10, 13, 34, 44, 0x80, 0xFF))])
    path.write_bytes(data)
    return "bytes"


def place_of(path: Path, rng: Random) -> str:
    """Something else where the file was."""
    kind = rng.choice(("pipe", "device", "loop", "folder", "missing", "empty", "huge", "noise", "dangling", "other"))
    others = [p for p in path.parent.rglob("*") if p.is_file() and not p.is_symlink()]
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop", "dangling"):
        path.symlink_to(
            {"device": rng.choice(("/dev/zero", "/dev/urandom")), "loop": path, "dangling": "nowhere"}[kind]
        )
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(rng.choice((2**31, 2**33, 2**40)))
    elif kind == "other":
        path.symlink_to(rng.choice(sorted(others)))
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else rng.randbytes(rng.choice((1, 100, 10_000))))
    return kind


# -- what it says ----------------------------------------------------------------------------------


def value_in(tree: Any, rng: Random) -> str:
    """One value, however deep, replaced, removed, renamed or repeated."""
    places: list[tuple[Any, Any]] = []

    def walk(at: Any) -> None:
        inside = at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        for key, each in inside:
            places.append((at, key))
            walk(each)

    walk(tree)
    if not places:
        return "nothing to change"
    at, key = rng.choice(places)
    if rng.random() < 0.5:  # most values are deep in tables of numbers: start above
        at, key = tree, rng.choice([key for where, key in places if where is tree])
        while isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
            at = at[key]
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
    kind = rng.randrange(8)
    if kind == 0:
        del at[key]
    elif kind == 1 and isinstance(at, dict):
        at[rng.choice(TEXTS)] = at.pop(key)
    elif kind == 2 and isinstance(at[key], list):
        at[key] = at[key] * rng.choice((2, 1000))
    elif kind == 3:
        there, name = rng.choice(places)
        at[key] = copy.deepcopy(there[name])
    else:
        at[key] = copy.deepcopy(rng.choice(VALUES))
    return f"{key!r:.40}: {at.get(key, '-') if isinstance(at, dict) else '...'!r:.60}"


def json_of(path: Path, rng: Random) -> str:
    values = json.loads(path.read_text())
    told = value_in(values, rng)
    path.write_text(json.dumps(values))
    return told


def lines_of(path: Path, rng: Random) -> str:
    """One line of several JSON values."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    i = rng.randrange(len(lines))
    values = json.loads(lines[i])
    told = value_in(values, rng)
    lines[i] = json.dumps(values)
    path.write_text("\n".join(lines) + "\n")
    return told


def signed(values: dict[str, Any]) -> str:
    """As somebody would write it who can compute the hash too."""
    values.pop("sha256", None)
    text = json.dumps(values, sort_keys=True)
    return json.dumps(values | {"sha256": hashlib.sha256(text.encode()).hexdigest()})


def manifest_of(path: Path, rng: Random) -> str:
    values = json.loads(path.read_text())
    told = "; ".join(value_in(values, rng) for _ in range(rng.choice((1, 1, 2))))
    path.write_text(signed(values))
    return told


def summed(values: Any) -> str:
    """An answers file with its right checksum."""
    text = json.dumps(values, indent=1)[2:]
    return f'{{\n "checksum": "{zlib.crc32(text.encode()):08x}",\n{text}'


def answers_of(path: Path, rng: Random) -> str:
    values = json.loads(path.read_text())
    del values["checksum"]
    told = "; ".join(value_in(values, rng) for _ in range(rng.choice((1, 1, 3))))
    path.write_text(summed(values))
    return told


def array(values: np.ndarray[Any, Any], rng: Random) -> np.ndarray[Any, Any]:
    """Of another shape, type or content."""
    kind = rng.randrange(7)
    if kind == 0:
        return values.reshape(-1)[: rng.randrange(values.size + 1)]
    if kind == 1:
        return values.astype(rng.choice(("float64", "float32", "int64", "uint8", "bool")))
    if kind == 2:
        return np.full_like(values, rng.choice((0, 1, 200)))
    if kind == 3:
        return np.full(values.shape, rng.choice((np.nan, np.inf, -np.inf, 1e30, -1.0)), rng.choice(("f4", "f8")))
    if kind == 4:
        return values[..., None]
    if kind == 5:
        return np.concatenate([values, values]) if values.ndim else values
    return np.empty((0, *values.shape[1:]), values.dtype)


def tensors_of(path: Path, rng: Random) -> str:
    """Of a model's folder, with the right hashes."""
    found = load_tensors(path.read_bytes())
    name = rng.choice(sorted(found))
    kind = rng.randrange(4)
    if kind == 0:
        del found[name]
    elif kind == 1:
        found[rng.choice(("strange", "costs", "after_test", *found))] = found[name]
    else:
        found[name] = array(found[name], rng)
    path.write_bytes(save_tensors({k: np.ascontiguousarray(v) for k, v in found.items()}))
    if (manifest := path.with_name("model.json")).exists():
        values, digest = json.loads(manifest.read_text()), hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name == "arrays.safetensors":
            values["arrays"] = digest
        else:
            values["members"][0]["sha256"] = digest
        manifest.write_text(signed(values))
    return f"array {name}"


def torch_of(path: Path, rng: Random) -> str:
    """What torch.save wrote, with something else in it; of a checkpoint with the right hash."""
    import torch

    content = path.read_bytes()
    start = len(MAGIC) + 32 if content.startswith(MAGIC) else 0
    found: Any = torch.load(io.BytesIO(content[start:]), weights_only=True)
    if start and rng.random() < 0.3:
        history = json.loads(found["history"])
        told = value_in(history, rng)
        found["history"] = json.dumps(history)
    elif rng.random() < 0.5:
        told = value_in(found, rng)
    else:
        told = tensor_in(found["model"] if start else found, rng)
    if rng.random() < 0.1:
        found, told = rng.choice(({}, [], [found], 3, {"state_dict": found}, {1: found})), "a whole"
    body = io.BytesIO()
    torch.save(found, body)
    data = body.getvalue()
    if rng.random() < 0.1:  # compressed, and what it holds is long
        data, told = compressed(data), "compressed"
    path.write_bytes(MAGIC + hashlib.sha256(data).digest() + data if start else data)
    return told


def sealed_of(path: Path, rng: Random) -> str:
    """An entry of the cache, changed by somebody who can compute its hash."""
    content = bytearray(path.read_bytes()[32:])
    for _ in range(rng.choice((1, 10, 1000))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    content = content[: rng.choice((None, None, rng.randrange(len(content))))]
    path.write_bytes(hashlib.sha256(path.suffix.encode() + content).digest() + content)
    return f"sealed {len(content)}"


def tensor_in(table: dict[Any, Any], rng: Random) -> str:
    """A tensor of another kind or shape, under the same name or another."""
    import torch

    name = rng.choice(sorted(table))
    value = table[name]
    kind = rng.randrange(9)
    with warnings.catch_warnings(action="ignore"):
        other = (
            lambda: value.to_sparse(),
            lambda: torch.empty(value.shape, device="meta"),
            lambda: torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8),
            lambda: torch.nested.nested_tensor([value, value]),
            lambda: value.to(torch.complex64),
            lambda: torch.ones(1).expand(rng.choice((tuple(value.shape), (2**20, 2**20), (2**30, 3, 3, 3)))),
            lambda: value.to(rng.choice((torch.int8, torch.bool, torch.float64, torch.bfloat16))),
            lambda: value.reshape(-1)[:1].clone(),
            lambda: torch.full_like(value, float("nan")),
        )[kind]()
    table[rng.choice((name, name, name, 3, ("a", "b"), "strange"))] = other
    return f"tensor {name} {kind}"


def compressed(content: bytes) -> bytes:
    """A ZIP file's content, with one more file of 64 MB in a few bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))
        after.writestr(f"{before.namelist()[0].split('/')[0]}/data/99", bytes(2**26))
    return packed.getvalue()


def library_of(path: Path, rng: Random) -> str:
    """An array of another shape, type or content, under its name or another one's."""
    with np.load(path) as found:
        arrays = dict(found)
    name, other = rng.choice(sorted(arrays)), rng.choice(sorted(arrays))
    kind = rng.randrange(5)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = arrays[other]
    elif kind == 2:
        arrays[rng.choice(("x", "0/x/test/identity", "0/baseline/test/x", "1/test_labels", "0/test_ids"))] = arrays[
            name
        ]
    elif kind == 3:
        arrays[name] = np.array(rng.choice(([], [b"x"], [{}], [1j], ["\ud800"], 3, [["low"]], ["low"] * 36)))
    else:
        arrays[name] = array(arrays[name], rng)
    np.savez_compressed(path, **arrays)
    return f"array {name}"


def header_of(path: Path, rng: Random) -> str:
    """The header of a safetensors file: offsets, shapes and types that do not fit."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    told = value_in(header, rng)
    text = json.dumps(header).encode()
    size = rng.choice((len(text), len(text), len(text), 2**62, 2**32, 0))
    path.write_bytes(struct.pack("<Q", size) + text + data[8 + length :])
    return told


def npz_of(path: Path, rng: Random) -> str:
    """An array of another shape, type or content, or none."""
    with np.load(path) as found:
        arrays = dict(found)
    name = rng.choice(sorted(arrays))
    kind = rng.randrange(5)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[rng.choice(("id", "part", "z", "../x", *arrays))] = arrays[rng.choice(sorted(arrays))]
    elif kind == 2:
        arrays[name] = array(arrays["p"], rng)
    elif kind == 3:
        arrays[name] = np.array(rng.choice(([], [b"x"], [{}], [1j], ["\ud800"], 3, [["low"]], ["low"] * 120)))
    else:
        arrays[name] = arrays[name][: rng.randrange(121)]
    rng.choice((np.savez, np.savez_compressed))(path, **arrays)
    return f"array {name}"


def zip_of(path: Path, rng: Random) -> str:
    """What is inside the archive, packed again; or a bomb."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(contents))
    inside = path.with_name("inside")
    inside.write_bytes(contents[name])
    told = bytes_of(inside, rng)
    contents[name] = inside.read_bytes()
    inside.unlink()
    if rng.random() < 0.2:
        contents[name], told = contents[name] + b"\0" * 2**26, "bomb"
    if rng.random() < 0.2:  # a header that announces more than there is
        shape, told = rng.choice(("(9999999999,)", "(100000, 100000)", "()", "(-1,)", "(2, 3")), "header"
        header = f"{{'descr': '{rng.choice(('<f8', '|O', '<U9', '|V8'))}', 'fortran_order': False, 'shape': {shape}}}\n"
        contents[name] = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + contents[name][128:]
    with zipfile.ZipFile(
        path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    ) as archive:
        for each, content in contents.items():
            archive.writestr(each, content)
    return told


def parquet_of(path: Path, rng: Random) -> str:
    """A column of another type or content, twice, renamed or missing."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(path)
    name = rng.choice(table.column_names)
    at, n = table.column_names.index(name), len(table)
    values: Any = rng.choice(
        (
            [None] * n,
            [1.5] * n,
            [True] * n,
            ["x" * 100_000] * n,
            [[1.0]] * n,
            [{"a": 1}] * n,
            [b"\xff"] * n,
            [float("nan")] * n,
            [1e308] * n,
            [2**62] * n,
            pyarrow.array([0] * n, pyarrow.timestamp("ns")),
            pyarrow.array(["low"] * n).dictionary_encode(),
            pyarrow.nulls(n),
            pyarrow.array([1] * n, pyarrow.decimal128(9)),
        )
    )
    kind = rng.randrange(5)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        table = table.rename_columns(
            [
                rng.choice((*TEXTS[:2], "id", "p:low", "z:low", "\x1b")) if i == at else each
                for i, each in enumerate(table.column_names)
            ]
        )
    elif kind == 2:
        table = table.slice(0, rng.choice((0, 1, 5)))
    else:
        values = values if isinstance(values, pyarrow.Array) else pyarrow.array(values)
        table = (
            table.set_column(at, name, values) if kind == 3 else table.append_column(rng.choice(("part", name)), values)
        )
    parquet.write_table(table, path)
    return f"column {name}"


def toml_of(path: Path, rng: Random) -> str:
    """One value replaced by a literal, or a key added somewhere."""
    lines = path.read_text().splitlines()
    literal = rng.choice(LITERALS)
    keys = [i for i, line in enumerate(lines) if re.match(r"[\w-]+ = ", line)]
    if rng.random() < 0.6:
        i = rng.choice(keys)
        lines[i] = re.sub(r"= .*", lambda _: f"= {literal}", lines[i])
    else:
        key = rng.choice(
            (
                "seed",
                "scale",
                "size",
                "epochs",
                "lr",
                "batch_size",
                "ignore",
                "label",
                "device",
                "budget",
                "views",
                "members",
                "set",
                "refer",
                "method",
                "track",
                "trust",
                "strange",
                "pair",
                "precision",
                "confidence",
                "recall",
                "accuracy_lost",
                "at_most",
                "limits",
                "priors",
                "groups",
                "junit",
                *EXPERIMENT,
            )
        )
        lines.insert(rng.randrange(len(lines) + 1), f"{key} = {literal}")
    path.write_text("\n".join(lines) + "\n")
    return literal[:60]


def csv_of(path: Path, rng: Random) -> str:
    """One cell, row or column."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    y = rng.choice((0, rng.randrange(len(rows))))
    z = rng.randrange(len(rows[y]))
    cell = rng.choice(
        (
            "",
            "nan",
            "inf",
            "-1",
            "1e999",
            "1_0",
            "1.000",
            "\0",
            '"',
            '"x',
            "x" * 200_000,
            "=1+1",
            "*",
            "🧪",
            "\x1b[31m",
            "a;b\tc",
            "0x10",
        )
    )
    kind = rng.randrange(6)
    if kind == 0:
        rows[y] = rows[y] * rng.choice((2, 5000))
    elif kind == 1:
        rows[y] = rows[y][:z]
    elif kind == 2:
        rows = rows[: y + 1]
    elif kind == 3:
        rows = [[*row, cell] for row in rows]
    else:
        rows[y][z] = cell
    text = rng.choice((",", ",", ",", ";", "\t")).join(rows[0]) + "\n" + "\n".join(",".join(row) for row in rows[1:])
    path.write_bytes(text.encode(rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin1")), "replace"))
    return f"cell {cell[:20]!r}"


def png_of(path: Path, rng: Random) -> str:
    """A header with its right checksum: sizes, depths and kinds of every sort."""
    data = bytearray(path.read_bytes())
    width, height = (rng.choice((0, 1, 7, 65_535, 100_000, 2**31 - 1)) for _ in range(2))
    fields = struct.pack(
        ">IIBBBBB", width, height, rng.choice((1, 8, 16, 77)), rng.choice((0, 2, 3, 4, 6)), 0, 0, rng.choice((0, 1))
    )
    data[16:33] = fields + struct.pack(">I", zlib.crc32(b"IHDR" + fields))
    path.write_bytes(data)
    return f"{width} x {height}"


def packed_of(path: Path, rng: Random) -> str:
    """What is inside the compression, compressed again; or a bomb."""
    inside = path.with_name("inside")
    inside.write_bytes(gzip.decompress(path.read_bytes()))
    told = bytes_of(inside, rng)
    data = inside.read_bytes()
    inside.unlink()
    if rng.random() < 0.2:
        data, told = data + b"\0" * 2**26, "bomb"
    path.write_bytes(gzip.compress(data, 1))
    return told


def tar_of(path: Path, rng: Random) -> str:
    """A field of a header, with the right checksum."""
    with tarfile.open(path) as tar:
        at = rng.choice([each.offset for each in tar])
    data = bytearray(path.read_bytes())
    texts = [text.encode(errors="surrogatepass") for text in (*TEXTS, "cat/1.png", "1.cls", "train/", "a" * 200)]
    sizes = (b"00000000000", b"00000000001", b"77777777777", b"-1", b"x", b"\x80" + rng.randbytes(11), b"\xff" * 12)
    fields: dict[str, tuple[int, int, Sequence[bytes]]] = {
        "name": (0, 100, texts),
        "size": (124, 12, sizes),
        "type": (156, 1, [bytes([kind]) for kind in b"01234567gxLKSDVN\0"]),
        "link": (157, 100, texts),
        "version": (257, 8, (b"ustar\00000", b"ustar  \0", b"", b"zzzzz")),
        "prefix": (345, 155, texts),
    }
    name = rng.choice(sorted(fields))
    begin, length, values = fields[name]
    value = rng.choice(values)[:length].ljust(length, b"\0")
    data[at + begin : at + begin + length] = value
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    return f"{name} {value[:20]!r}"


def onnx_of(path: Path, rng: Random) -> str:
    """What the file says of itself, or a number, a name or a node of its graph."""
    import onnx

    from csada.shipping.onnx_file import sealed

    model = onnx.load(path)
    (told,) = [each for each in model.metadata_props if each.key == "csada"]
    kind = rng.randrange(6)
    if kind <= 2:
        values = json.loads(told.value)
        said = value_in(values, rng)
        told.value = json.dumps(values)
    elif kind == 3:
        tensor = rng.choice(model.graph.initializer)
        said = f"initializer {tensor.name}"
        data = bytearray(tensor.raw_data)
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        tensor.raw_data = bytes(data)
    elif kind == 4:
        node = rng.choice(model.graph.node)
        said = f"node {node.op_type}"
        node.op_type = rng.choice(("Neg", "Loop", "Identity", "Softmax", "ReduceMax", node.op_type))
    else:
        some = rng.choice((model.graph.input, model.graph.output, model.graph.node))
        del some[rng.randrange(len(some))]
        said = "something less"
    content = model.SerializeToString()
    path.write_bytes(sealed(content) if rng.random() < 0.7 else content)  # what is behind the hash must hold as well
    return said


def any_of(*changes: Change) -> Change:
    """One of these, or of what may happen to every file."""

    def change(path: Path, rng: Random) -> str:
        chosen = rng.choice((*changes, *changes, bytes_of, place_of))
        return f"{chosen.__name__} {chosen(path, rng)}"

    return change


bytes_or_place = any_of()
