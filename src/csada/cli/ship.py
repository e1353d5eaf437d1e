"""A model in use: as a file for another machine, and on new inputs."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from csada.cli import common as cli
from csada.errors import InputError, RunError, check_known
from csada.files import printable, replaceable


@cli.command()
def export(
    model: cli.Model,
    out: Annotated[Path | None, Option(help="The file to write; by default model.onnx in that folder.")] = None,
    dtype: Annotated[
        str | None, Option("--input", metavar="uint8|float32", help="What the file takes; by default as stored.")
    ] = None,
    force: cli.Force = False,
    trust: cli.Trust = False,
    as_json: cli.AsJson = False,
) -> None:
    """One ONNX file that takes raw pixels or rows and decides by cost, on any machine with onnxruntime.

    Example: csada export out/fitted --out pills.onnx
    """
    from csada.classifier import Classifier
    from csada.reading import plain

    file = replaceable(model / "model.onnx" if out is None else out, "model", force=force)
    written = Classifier.load(model, trust=trust).export(file, dtype)
    about = written.about
    if as_json:
        facts = {"file": str(file), "bytes": written.bytes, "difference": written.difference}
        cli.show_json(facts | plain(about))
        return
    cli.say(
        f"{len(about.classes)} classes, input N x {about.input}, {written.bytes / 1e3:,.0f} kB; "
        f"onnxruntime and PyTorch agree to {written.difference:.1g}"
    )
    cli.show_files([file])


@cli.command()
def predict(
    model: Annotated[Path, Argument(help="A folder of `csada train` or `csada fit`, or an exported .onnx file.")],
    inputs: Annotated[list[Path], Argument(help="Images, folders of images, or one CSV or Parquet file of rows.")],
    form: Annotated[str, Option("--format", metavar="csv|jsonl", help="How the rows are written.")] = "csv",
    out: Annotated[Path | None, Option(help="The file to write; by default the rows are printed.")] = None,
    every: Annotated[
        bool, Option("--all", help="Also probability, expected cost and criterion of each class.")
    ] = False,
    log: Annotated[Path | None, Option(help="Append each decision to this file, for csada monitor.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Samples decided at once; by default 64 images or 4,096 rows.")
    ] = None,
    force: cli.Force = False,
    trust: cli.Trust = False,
    device: Annotated[str | None, Option(metavar="cpu|cuda", help="By default a GPU if there is one.")] = None,
) -> None:
    """Decide new inputs: class, probability, expected cost, and whether to refer the case to a person.

    Example: csada predict out/fitted photos/ --out decisions.csv
    """
    from csada.rows import cell, said_of_unknown

    check_known("format", form, ("csv", "jsonl"))
    replaceable(out, "table of decisions", force=force)
    from csada.workflow.predict import default_batch, files, open_log, open_model
    from csada.workflow.predict import predict as rows_of

    opened = open_model(model, device, trust=trust)
    batch_size = batch_size or default_batch(opened)
    unknown: Counter[str] = Counter()
    logged = None if log is None else open_log(log, opened)
    rows = rows_of(opened, inputs, batch_size, every, unknown, logged)
    name, *_ = columns = opened.columns(every)
    total = 0 if out is None or opened.input.is_row else sum(1 for _ in files(inputs))
    done = failed = 0

    def shown(text: str) -> str:
        return cell(printable(text) if out is None and sys.stdout.isatty() else text)

    with (
        cli.output(out) as stream,
        logged or nullcontext(),
        cli.progress("predicting") if total else nullcontext() as update,
    ):
        table = csv.DictWriter(stream, columns, lineterminator="\n")
        if form == "csv":
            table.writerow(dict(zip(columns, map(shown, columns), strict=True)))
        for row in rows:
            if "error" in row:
                failed += 1
                where = f"row {row[name]}" if opened.input.is_row else row[name]
                cli.note(f"csada: {where}: {row['error']}")
            if form == "csv":
                table.writerow({key: shown(value) if isinstance(value, str) else value for key, value in row.items()})
            else:
                stream.write(json.dumps(row) + "\n")
            done += 1
            if done % batch_size == 0:
                stream.flush()
            if update is not None:
                update(done, total)
        if done == failed:
            where = ", ".join(map(str, inputs))
            raise InputError(f"nothing in {where} can be read" if done else f"{where} holds nothing to predict")
    cli.note(*(f"csada: {line}" for line in said_of_unknown(unknown)))
    if out is not None:
        cli.show_files([out])
    if failed:
        raise RunError(f"{failed} of {done} inputs could not be read; their rows say why")
