"""Small charts as inline SVG: text that a browser scales, prints and reads out.

Colours are classes of the page's style sheet, so that a chart follows light and dark; dashes, shapes, outlines and numbers
say the same without colour. Every mark carries its value as <title>. Markup.format escapes what it is given: a class name
never becomes markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

LETTER = 6.3  # the width of a letter at 11 px, about


class Cell(NamedTuple):
    kind: str  # a class of the style sheet
    tone: float  # 0 to 1: how strong the colour is
    text: str  # shown where it fits
    hover: str


class Line(NamedTuple):
    name: str
    kind: str
    x: Iterable[float]
    y: Iterable[float]
    hover: Sequence[str]
    shape: str = "line"  # disc, diamond: single marks; band: areas, x and y going round each; where y is NaN is a gap


class Axis(NamedTuple):
    label: str
    from_zero: bool = False
    whole: bool = False  # whole numbers: epochs
    names: Sequence[str] = ()  # of 1, 2, ... in place of numbers
    least: float = -math.inf  # what it reaches in any case: less is not worth a look


def short(name: str, length: int = 12) -> str:
    """The name, cut where it is long; the whole of it belongs into the mark's <title>."""
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def ticks(low: float, high: float, *, whole: bool = False, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that enclose low and high; about `count` steps."""
    span = high - low if high > low else abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / count))
    step = next(size * factor for factor in (1, 2, 5, 10) if span <= size * factor * count * (1 + 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def line_chart(name: str, title: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line], width: float = 420) -> Markup:
    """Lines with one value per point, and single marks; the legend stands above, two columns wide."""
    xs, ys = (np.concatenate([list(getattr(line, along)) for line in lines]) for along in "xy")
    entries = lines if len(lines) > 1 else []  # one line is named by its axis
    top = 14.0 + 20 * math.ceil(len(entries) / 2)
    x_ticks = ticks(xs.min(), xs.max(), whole=x_axis.whole)
    first, last = (0.5, len(x_axis.names) + 0.5) if x_axis.names else (x_ticks[0], x_ticks[-1])
    y_ticks = ticks(0.0 if y_axis.from_zero else np.nanmin(ys), max(np.nanmax(ys), y_axis.least))
    left = max(58.0, 26 + LETTER * max(map(len, _labels(y_ticks))))
    right, bottom = width - 14, top + width / 2

    def at_x(value: float) -> float:
        return left + (right - left) * (value - first) / (last - first)

    def at_y(value: float) -> float:
        return bottom - (bottom - top) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    body = []
    for i, line in enumerate(entries):
        x, y = left + (width - left) / 2 * (i % 2), 14.0 + 20 * (i // 2)
        body.append(_shape(line.kind, line.shape, x + 10, y))
        body.append(Markup('<text x="{:g}" y="{:g}">{}</text>').format(x + 28, y + 4, line.name))
    body += [_grid(left, at_y(value), right, text) for value, text in zip(y_ticks, _labels(y_ticks), strict=True)]
    if x_axis.names:
        wide = LETTER * max(len(short(text, 20)) for text in x_axis.names)
        n, fit = len(x_axis.names), max(int((right - left) / (1.5 * wide)), 1)
        for i in range(n - 1, -1, -math.ceil(n / fit)):  # the newest always; half a name between two
            x = min(max(at_x(i + 1), left + wide / 2 - 20), width - wide / 2)  # within the chart
            body.append(_tick(x, bottom + 18, short(x_axis.names[i], 20)))
    else:
        body += [_tick(at_x(value), bottom + 18, text) for value, text in zip(x_ticks, _labels(x_ticks), strict=True)]
    body.append(_axis_labels((left + right) / 2, bottom + 40, x_axis.label, (top + bottom) / 2, y_axis.label))
    for line in lines:
        points = [(at_x(x), at_y(y)) for x, y in zip(line.x, line.y, strict=True)]
        if line.shape in ("band", "line"):
            drawn = (
                '<polygon class="band {}" points="{}"/>'
                if line.shape == "band"
                else '<polyline class="line {}" points="{}"/>'
            )
            for known, run in groupby(points, lambda point: not math.isnan(point[1])):
                if known:
                    body.append(Markup(drawn).format(line.kind, " ".join(f"{x:.1f},{y:.1f}" for x, y in run)))
        if line.shape == "band":
            continue
        if line.shape != "line":
            body += [
                _shape(line.kind, line.shape, *point, told) for point, told in zip(points, line.hover, strict=True)
            ]
            continue
        dot = "dot" if len(points) <= 25 else "dot faint"
        for i in spread(len(points), 100):
            if math.isnan(points[i][1]):
                continue
            circle = '<circle class="{} {}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>'
            body.append(Markup(circle).format(dot, line.kind, *points[i], line.hover[i]))
    return _svg(name, title, "chart", width, bottom + 50, body)


def heat_map(
    name: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, int], Cell],
    width: float = 295,
) -> Markup:
    """Rows are the truth, columns the prediction. Cells that are left out are empty; the map is `width` wide if it can be.

    Cells never get too small to read: with many classes the map grows beyond its width, and the page lets it scroll.
    """
    shown = [short(text) for text in (*rows, *columns)]
    margin = LETTER * max(map(len, shown)) + 10
    flat = max(map(len, shown)) <= 2
    top, left = (40.0 if flat else 18 + margin), 20 + margin
    smallest = 16 if len(rows) <= 25 else 13
    cell = min(max((width - left - 2) / len(columns), smallest), 44)
    high, wide = top + cell * len(rows), left + cell * len(columns)
    across = "".join(f"M{left:g} {top + cell * i:g}H{wide:g}" for i in range(1, len(rows)))
    down = "".join(f"M{left + cell * i:g} {top:g}V{high:g}" for i in range(1, len(columns)))
    field = '<path class="field" d="M{:g} {:g}H{:g}V{:g}H{:g}z"/><path class="guide" d="{}"/>'
    body = [
        Markup(field).format(left, top, wide, high, left, across + down),
        _axis_labels((left + wide) / 2, 12, "predicted", (top + high) / 2, "truth"),
    ]
    for i, text in enumerate(rows):
        row = '<text class="tick end" x="{:g}" y="{:g}">{}<title>{}</title></text>'
        body.append(Markup(row).format(left - 6, top + cell * (i + 0.5) + 4, short(text), text))
    for i, text in enumerate(columns):
        x = left + cell * (i + 0.5)
        turn = f"translate({x:g} {top - 8:g})" if flat else f"translate({x + 4:g} {top - 6:g}) rotate(-90)"
        column = '<text class="tick {}" transform="{}">{}<title>{}</title></text>'
        body.append(Markup(column).format("middle" if flat else "", turn, short(text), text))
    for (y, z), one in cells.items():
        x0, y0 = left + cell * z, top + cell * y
        box = '<g class="cell"><rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}" fill-opacity="{:.2f}"/>'
        body.append(Markup(box).format(one.kind, x0 + 0.5, y0 + 0.5, cell - 1, cell - 1, one.tone))
        size = min(12.0, 0.5 * cell + 2, 1.5 * cell / max(len(one.text), 1))
        if one.text and size >= 7.5:
            number = '<text class="middle {}" x="{:g}" y="{:g}" font-size="{:.1f}">{}</text>'
            strong = "strong" if one.tone > 0.8 else "mid" if one.tone > 0.55 else ""
            body.append(Markup(number).format(strong, x0 + cell / 2, y0 + cell / 2 + 0.35 * size, size, one.text))
        body.append(Markup("<title>{}</title></g>").format(one.hover))
    return _svg(name, title, "map", wide + 2, high + 2, body)


def share_bars(name: str, title: str, kinds: Sequence[str], counts: Sequence[tuple[str, Sequence[int]]]) -> Markup:
    """A bar for each (label, counts by kind), cut into shares: what became of the attacks in every epoch."""
    left, right, top, bottom = 46.0, 236.0, 8.0, 104.0
    step = (right - left) / len(counts)
    body = [_grid(left, bottom - (bottom - top) * share / 100, right, f"{share} %") for share in (0, 50, 100)]
    every = math.ceil(len(counts) / 8)
    for i, (label, parts) in enumerate(counts):
        x, total, y = left + step * i, max(sum(parts), 1), bottom
        for kind, part in zip(kinds, parts, strict=True):
            height = (bottom - top) * part / total
            y -= height
            bar = '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
            gap = min(1.0, step / 6)
            hover = f"epoch {label}: {kind} {part} of {sum(parts)}"
            body += [Markup(bar).format(kind, x + gap, y, step - 2 * gap, height, hover)] * (part > 0)
        if i % every == 0:
            body.append(_tick(x + step / 2, bottom + 15, label))
    return _svg(name, title, "bars", right + 6, bottom + 20, body)


def whisker(name: str, title: str, kind: str, value: float, low: float, high: float, most: float) -> Markup:
    """A value with its interval on a line from 0 to `most`: to be put into the cells of one column."""
    width, y = 150.0, 9.0
    at = [6 + (width - 12) * v / (most or 1.0) for v in (low, high, value)]
    drawn = (
        '<path class="grid" d="M6 {0}H{1:g}"/><path class="line {2}" d="M{3:.1f} {0}H{4:.1f}"/>'
        '<circle class="dot {2}" cx="{5:.1f}" cy="{0}" r="4"/>'
    )
    return _svg(name, title, "whisker", width, 2 * y, [Markup(drawn).format(y, width - 6, kind, *at)])


def _svg(name: str, title: str, kind: str, width: float, height: float, body: Iterable[Markup]) -> Markup:
    frame = (
        '<svg id="{0}" class="{1}" viewBox="0 0 {2:g} {3:g}" width="{2:g}" height="{3:g}" role="img" '
        'aria-labelledby="{0}-title"><title id="{0}-title">{4}</title>{5}</svg>'
    )
    return Markup(frame).format(name, kind, round(width, 1), round(height, 1), title, Markup("").join(body))


def _grid(left: float, y: float, right: float, text: str) -> Markup:
    grid = '<path class="grid" d="M{:g} {:g}H{:g}"/><text class="tick end" x="{:g}" y="{:g}">{}</text>'
    return Markup(grid).format(left, y, right, left - 6, y + 4, text)


def _tick(x: float, y: float, text: str) -> Markup:
    return Markup('<text class="tick middle" x="{:g}" y="{:g}">{}</text>').format(x, y, text)


def _axis_labels(x: float, y: float, across: str, middle: float, up: str) -> Markup:
    """`across` at (x, y), and `up` along the left edge."""
    labels = (
        '<text class="axis middle" x="{:g}" y="{:g}">{}</text>'
        '<text class="axis middle" transform="translate(13 {:g}) rotate(-90)">{}</text>'
    )
    return Markup(labels).format(x, y, across, middle, up)


def _shape(kind: str, shape: str, x: float, y: float, hover: str = "") -> Markup:
    """A disc is filled and a diamond is not: both stay visible where they fall on the same place."""
    title = Markup("<title>{}</title>").format(hover) if hover else ""
    if shape == "line":
        return Markup('<path class="line {}" d="M{:g} {:g}h20"/>').format(kind, x - 10, y)
    if shape == "band":
        return Markup('<path class="band {}" d="M{:g} {:g}h20v10h-20z"/>').format(kind, x - 10, y - 5)
    if shape == "disc":
        return Markup('<circle class="disc {}" cx="{:.1f}" cy="{:.1f}" r="4.5">{}</circle>').format(kind, x, y, title)
    return Markup('<path class="diamond {}" d="M{:.1f} {:.1f}l8 8l-8 8l-8 -8z">{}</path>').format(kind, x, y - 8, title)


def _labels(values: Sequence[float]) -> list[str]:
    """With as many decimals as the steps between them need."""
    decimals = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [f"{value + 0.0:,.{decimals}f}".replace("-", "−") for value in values]


def spread(n: int, most: int) -> list[int]:
    """At most `most` of 0 .. n-1, evenly, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, most)).round()})
