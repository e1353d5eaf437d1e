"""Pill bottles seen from above, drawn instead of photographed: a stand-in for the PMI pictures with the same classes.

A bottle is painted from the bottom up. Every pill is a small stamp of surface normals and engraving, taken from a bank
of poses made once a product; the stamps land in one buffer, and light, glass and camera are applied to it as a whole.
Sizes in millimetres share one scale, so size is a cue; distance, faint imprints and blank faces make look-alikes alike.
Shape, colour, imprint, size and numbers of images are the paper's; score lines, domes and gloss are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from csada.costs import did_you_mean
from csada.data.augment import Normalization
from csada.data.cache import pixel_file
from csada.data.fetch import Progress
from csada.data.mapped import mapped
from csada.data.pmi import AUGMENTATION, CLASSES, PRODUCTS, Product
from csada.data.splits import PARTS, Part, Splits, check_scale
from csada.data.store import entry, room
from csada.errors import InputError, RunError
from csada.files import StrPath
from csada.processes import in_order

RENDERER = 1  # part of every cache key: raise it when a picture changes

PIXELS_PER_MM = 7.0
VIEW, CANVAS, MARGIN = 256, 288, 96  # what the camera sees at unit distance, what is lit, what stamps may overhang
POSES = 32  # of each face of each product
FEWEST = 3  # images of a class in a part, whatever the scale
CHUNK = 32  # images drawn by a worker at a time

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

COLOURS = {
    "white": (0.93, 0.92, 0.89),
    "brown": (0.66, 0.42, 0.29),
    "orange": (0.93, 0.56, 0.31),
    "yellow": (0.94, 0.84, 0.47),
}
ASPECTS = {"round": 1.0, "oval": 0.66, "capsule": 0.42}  # width over length


@dataclass(frozen=True)
class Conditions:
    """How hard the photographs are. Each range is drawn from once a picture.

    imprint: how deep the engraving looks, 0 is invisible; blank: share of the pills that show no imprint;
    distance: pills look this fraction larger or smaller; blur: radius and noise: standard deviation, in pixels and grey
    levels of the 256-pixel view.
    """

    imprint: tuple[float, float] = (0.0, 0.8)
    blank: float = 0.4
    distance: float = 0.08
    blur: tuple[float, float] = (0.4, 1.5)
    noise: tuple[float, float] = (2.0, 7.0)

    def __post_init__(self) -> None:
        for name in ("imprint", "blur", "noise"):
            given = getattr(self, name)
            try:
                low, high = map(float, given)
                if not 0 <= low <= high < np.inf:
                    raise ValueError
            except (TypeError, ValueError):
                raise InputError(f"{name} must be two numbers, 0 or more, the lower first, got {given!r}") from None
            object.__setattr__(self, name, (low, high))
        if not (0 <= self.blank <= 1 and 0 <= self.distance <= 0.1):
            raise InputError(f"blank must lie in [0, 1] and distance in [0, 0.1], got {self.blank} and {self.distance}")


# -- data set --------------------------------------------------------------------------------------


def load(
    data_dir: StrPath | None = None,
    scale: float = 1.0,
    seed: int = 0,
    size: int = 224,
    imprint: tuple[float, float] = Conditions.imprint,
    blank: float = Conditions.blank,
    distance: float = Conditions.distance,
    blur: tuple[float, float] = Conditions.blur,
    noise: tuple[float, float] = Conditions.noise,
    classes: Sequence[str] | None = None,
    on_progress: Progress | None = None,
) -> Splits:
    """The paper's classes, imbalance and sizes of parts, drawn once and cached; `data_dir` is not needed.

    See `Conditions` for what makes the task hard. `classes`: only these products, by code or by a part of their name.
    """
    check_scale(scale)
    if seed < 0 or size < 16:
        raise InputError(f"seed must be 0 or more and size at least 16, got {seed} and {size}")
    conditions = Conditions(imprint, blank, distance, blur, noise)
    names = dict(zip(CLASSES, CLASSES, strict=True)) if classes is None else _named(classes)
    counts = {
        part: [max(FEWEST, round(scale * getattr(p, part))) * (p.ndc in names) for p in PRODUCTS] for part in PARTS
    }
    known = ([RENDERER, part, counts[part], seed, size, asdict(conditions)] for part in PARTS)
    places = (entry(identity, "pills") for identity in known)
    paths = {part: place.with_name(f"pills-{place.name}.npy") for part, place in zip(PARTS, places, strict=True)}
    jobs = {
        part: [Job(seed, part, label, n) for label, count in enumerate(counts[part]) for n in range(count)]
        for part in PARTS
        if mapped(paths[part], sum(counts[part]), size) is None
    }
    done, total = 0, sum(map(len, jobs.values()))
    for part in jobs:
        for drawn in _written(paths[part], jobs[part], size, conditions):
            done += drawn
            if on_progress is not None:
                on_progress(done, total)
    x = {part: found for part in PARTS if (found := mapped(paths[part], sum(counts[part]), size)) is not None}
    if lost := [part for part in PARTS if part not in x]:
        raise RunError(
            f"the cache written to {paths[lost[0]].parent} cannot be read back; set CSADA_CACHE to another folder"
        )
    y = {
        part: torch.arange(len(names)).repeat_interleave(torch.tensor([n for n in counts[part] if n])) for part in PARTS
    }
    some = x["train"][:: max(1, len(x["train"]) // 256)].transpose(0, 1).flatten(1).double() / 255
    normalization = Normalization(tuple(some.mean(1).tolist()), tuple(some.std(1).tolist()), 255)
    train = Part(x["train"], y["train"], normalization, AUGMENTATION)
    validation, test = (Part(x[part], y[part], normalization) for part in PARTS[1:])
    return Splits(train, validation, test, tuple(names.values()), "pills")


def _named(classes: Sequence[str]) -> dict[str, str]:
    """Code -> the name that was given for it, in the order of PRODUCTS."""
    found: dict[str, str] = {}
    for text in classes:
        fits = [p for p in PRODUCTS if text == p.ndc or (text and text.lower() in p.name.lower())]
        if not fits:
            known = dict.fromkeys(p.name.lower().removeprefix("24 hr ").split()[0] for p in PRODUCTS)
            raise InputError(f"no product is named {text!r}{did_you_mean(text.lower(), known)}")
        if len(fits) > 1:
            several = ", ".join(f"{p.ndc} ({p.name})" for p in fits[:5])
            raise InputError(f"{text!r} may be {several}; write more of the name, or the code")
        if fits[0].ndc in found:
            raise InputError(f"{text!r} and {found[fits[0].ndc]!r} are the same product; keep one")
        found[fits[0].ndc] = text
    if len(found) < 2:
        raise InputError(f"a classifier needs two classes or more, got {len(found)}")
    return {ndc: found[ndc] for ndc in CLASSES if ndc in found}


class Job(NamedTuple):
    """What decides a picture: the same whoever draws it, and however many others are drawn."""

    seed: int
    part: str
    label: int
    number: int

    def draw(self, side: int, conditions: Conditions) -> Bytes:
        generator = np.random.default_rng([self.seed, PARTS.index(self.part), self.label, self.number])
        return draw(PRODUCTS[self.label], generator, conditions, side)


def draw_many(jobs: Sequence[Job], side: int, conditions: Conditions) -> Bytes:
    """[len(jobs), 3, side, side]"""
    return np.stack([job.draw(side, conditions) for job in jobs])


def _written(path: Path, jobs: Sequence[Job], side: int, conditions: Conditions) -> Iterator[int]:
    """How many pictures have been added to the file, time and again: drawn in parallel, written in order."""
    with room(path.with_suffix(""), len(jobs) * 3 * side**2), pixel_file(path, len(jobs), side) as file:
        for pictures in _in_parallel(jobs, side, conditions):
            file.write(pictures.data)
            yield len(pictures)


def _in_parallel(jobs: Sequence[Job], side: int, conditions: Conditions) -> Iterator[Bytes]:
    """Chunks of pictures in order. Processes, because small arrays leave the interpreter's lock no rest."""
    from joblib import cpu_count  # a container's own

    chunks = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
    workers = min(cpu_count(), len(chunks) // 4)  # a few are drawn here before a worker has started
    yield from in_order(draw_many, ((chunk, side, conditions) for chunk in chunks), workers)


# -- pills -----------------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """One pill in one pose."""

    surface: NDArray[np.float16]  # [k, k, 4]: normal to the right, normal downwards, engraving, albedo
    mask: NDArray[np.bool_]  # [k, k]
    shadow: NDArray[np.float16]  # [k, k]: the share of the light that is left around and beneath it


def faces(product: Product) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of text on the two faces: the last part of the imprint is on the back."""
    *front, back = product.imprint.split(";")
    return (tuple(front), (back,)) if front else ((back,), ())


@lru_cache(maxsize=4 * len(PRODUCTS))
def bank(product: Product, face: int) -> tuple[Stamp, ...]:
    """POSES stamps of the front (0), the back (1) or a blank face (2), the same in every process."""
    generator = np.random.default_rng([RENDERER, PRODUCTS.index(product), face])
    lines = (*faces(product), ())[face]
    engraving = engrave(product, lines, scored=bool(product.scored) and face == 1)
    return tuple(pose(product, engraving, generator) for _ in range(POSES))


def engrave(product: Product, lines: tuple[str, ...], scored: bool) -> Floats:
    """Depth of the engraving over the face, 3 texels to a pixel: the length of the pill is the width of the array."""
    length = round(3 * PIXELS_PER_MM * product.size)
    width = round(length * ASPECTS[product.shape])
    plate = Image.new("L", (length, width))
    draw = ImageDraw.Draw(plate)
    half = 0.16 * 3 * PIXELS_PER_MM  # of the width of a score line
    if product.shape != "round":  # scored across, and only where nothing is written
        room, height, first, step = 0.6, 0.55, 0.5, 0.0
        line = (length / 2 - half, 0.0, length / 2 + half, float(width))
    else:  # written above the score line, or around the middle
        room, height, first, step = (0.62, 0.25, 0.29, 0.0) if scored else (0.72, 0.4 / max(len(lines), 1), 0.5, 0.26)
        line = (0.0, width / 2 - half, float(length), width / 2 + half)
    for i, text in enumerate(lines):
        left, _, right, _ = draw.textbbox((0, 0), text, font=_font(height * width))
        font = _font(height * width * min(1.0, room * length / (right - left)))
        middle = width * (first + step * (i - (len(lines) - 1) / 2))
        draw.text((length / 2, middle), text, fill=255, font=font, anchor="mm")
    if scored:
        draw.rectangle(line, fill=255)
    depth: Floats = np.asarray(plate.filter(ImageFilter.GaussianBlur(1.6)), dtype=np.float32) / np.float32(255)
    return depth


@lru_cache(maxsize=256)
def _font(size: float) -> ImageFont.FreeTypeFont:
    import matplotlib  # for the typeface it ships; only the renderer needs it

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans-Bold.ttf"), round(size))


def outline(product: Product, u: Floats, v: Floats) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Distance from the middle (1 on the rim) and the direction outwards, at (u, v) pixels from the centre."""
    a = PIXELS_PER_MM * product.size / 2
    b = a * ASPECTS[product.shape]
    if product.shape == "capsule":
        u = u - np.clip(u, b - a, a - b)
        distance, du, dv = np.hypot(u, v) / b, u, v
    else:
        distance, du, dv = np.hypot(u / a, v / b), u / a**2, v / b**2
    norm = np.maximum(np.hypot(du, dv), 1e-6)
    return distance, du / norm, dv / norm


def pose(product: Product, engraving: Floats, generator: np.random.Generator) -> Stamp:
    """The pill turned in the plane and leaning by a random angle: its face, the band of its side, its shadow.

    (a, b) are coordinates in the plane with b the direction in which the face leans; leaning by t shortens b by cos t
    and shows thickness * sin t of the side behind the face.
    """
    from scipy import ndimage

    lean, turn, within = np.deg2rad(min(abs(generator.normal(0, 13)), 45)), *generator.uniform(0, 2 * np.pi, 2)
    if product.shape != "round":
        within = 0.0  # a long pill rolls; only a round one leans over any point of its rim, or stands on it
    elif generator.random() < 0.1:
        lean = np.deg2rad(generator.uniform(45, 80))
    (cl, sl), (ct, st), (cw, sw) = ((float(np.cos(t)), float(np.sin(t))) for t in (lean, turn, within))
    aspect = ASPECTS[product.shape]
    side = PIXELS_PER_MM * (0.5 + 0.3 * product.size * aspect**0.5) * sl
    k = 2 * int(PIXELS_PER_MM * product.size / 2 + side / 2 + 14) + 1
    y, x = np.mgrid[:k, :k].astype(np.float32) - k // 2
    a, b = ct * x + st * y, (ct * y - st * x - side / 2) / cl

    u, v = cw * a + sw * b, cw * b - sw * a
    distance, du, dv = outline(product, u, v)
    face = distance <= 1
    slope = product.dome * distance + 1.6 * np.clip((distance - 0.84) / 0.16, 0, 1) ** 2
    up = 1 / np.sqrt(1 + slope**2)
    na, nb = (cw * du - sw * dv) * slope * up, (sw * du + cw * dv) * slope * up * cl + up * sl

    b = b + np.clip(-b, 0, side / cl)  # the face swept along its side
    swept, du, dv = outline(product, cw * a + sw * b, cw * b - sw * a)
    mask = swept <= 1
    na, nb = np.where(face, na, cw * du - sw * dv), np.where(face, nb, (sw * du + cw * dv) * cl)

    texel = [3 * v + (engraving.shape[0] - 1) / 2, 3 * u + (engraving.shape[1] - 1) / 2]
    depth = np.where(distance < 0.93, ndimage.map_coordinates(engraving, texel, order=1, prefilter=False), 0)
    albedo = (1 + generator.normal(0, 0.015)) * (1 + 0.012 * generator.standard_normal((k, k), dtype=np.float32))
    surface = np.stack([ct * na - st * nb, st * na + ct * nb, depth, albedo], axis=-1)
    shadow = 1 - 0.75 * ndimage.gaussian_filter(mask.astype(np.float32), 4.5, truncate=2.5)
    return Stamp(surface.astype(np.float16), mask, shadow.astype(np.float16))  # half: a process keeps 1,920 of them


# -- bottles ---------------------------------------------------------------------------------------


class Bottle(NamedTuple):
    """Open, seen from above."""

    product: Product
    centre: NDArray[np.float64]  # row and column on the canvas
    bed: float  # radius of the disc that the pills cover
    light: float  # the direction that it comes from


def draw(product: Product, generator: np.random.Generator, conditions: Conditions, side: int = VIEW) -> Bytes:
    """One photograph of a bottle of the product, [3, side, side]."""
    zoom = 1 + generator.uniform(-1, 1) * conditions.distance
    bed = generator.uniform(98, 116) / zoom  # the glass keeps its size in the picture: no ruler beside the pills
    bottle = Bottle(product, CANVAS / 2 + generator.uniform(-5, 5, 2), bed, generator.uniform(0, 2 * np.pi))
    surface, occlusion = fill(bottle, conditions.blank, generator)
    rgb = shine(bottle, surface, occlusion, generator.uniform(*conditions.imprint), generator)
    bands = [Image.fromarray(band) for band in np.clip(rgb * 255, 0, 255).astype(np.uint8)]
    picture = Image.merge("RGB", bands).filter(ImageFilter.BoxBlur(generator.uniform(*conditions.blur)))
    # uniform: many times faster than normal, and the resizing below mixes neighbours
    noise = generator.integers(-128, 128, (CANVAS, CANVAS, 3), np.int8).astype(np.float32)
    noise *= generator.uniform(*conditions.noise) * 3**0.5 / 128
    noise += np.asarray(picture)
    picture = Image.fromarray(np.clip(noise, 0, 255, out=noise).astype(np.uint8))
    edge = (CANVAS - VIEW / zoom) / 2
    picture = picture.resize((side, side), Image.Resampling.BILINEAR, box=(edge, edge, CANVAS - edge, CANVAS - edge))
    return np.stack([np.asarray(band) for band in picture.split()])


def fill(bottle: Bottle, blank: float, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Four layers of pills, the lowest first: their surfaces, and how much of the light reaches each point."""
    product, centre, bed, light = bottle
    full = CANVAS + 2 * MARGIN
    surface = np.zeros((full, full, 4), np.float32)
    occlusion = np.full((full, full), 0.5, np.float32)
    length = PIXELS_PER_MM * product.size
    breadth = length * ASPECTS[product.shape] ** 0.5
    fall = np.round(3 * np.array([np.sin(light), np.cos(light)])).astype(int)  # shadows fall away from the light
    for _ in range(4):
        occlusion *= 0.8
        for place in scatter(bed - 0.43 * length, 0.78 * breadth, generator):
            face = 2 if generator.random() < blank else int(generator.integers(2))
            stamp = bank(product, face)[generator.integers(POSES)]
            k = len(stamp.mask)
            row, column = (np.round(centre + place).astype(int) + MARGIN - k // 2).tolist()
            below = occlusion[row - fall[0] : row - fall[0] + k, column - fall[1] : column - fall[1] + k]
            below *= stamp.shadow
            here = np.s_[row : row + k, column : column + k]
            np.copyto(surface[here], stamp.surface, where=stamp.mask[..., None])
            np.copyto(occlusion[here], np.float32(1), where=stamp.mask)
    inner = np.s_[MARGIN : MARGIN + CANVAS, MARGIN : MARGIN + CANVAS]
    return surface[inner], occlusion[inner]


def scatter(reach: float, apart: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """Random places in a disc, no two closer than `apart`, in the order in which they were tried."""
    tries = int(16 * (reach / apart) ** 2) + 8
    angle = generator.uniform(0, 2 * np.pi, tries)
    radius = reach * np.sqrt(generator.random(tries))
    y, x = radius * np.sin(angle), radius * np.cos(angle)
    near = (y[:, None] - y) ** 2 + (x[:, None] - x) ** 2 < apart**2
    kept: list[int] = []
    blocked = np.zeros(tries, bool)
    for i in range(tries):
        if not blocked[i]:
            kept.append(i)
            blocked |= near[i]
    return np.stack([y[kept], x[kept]], axis=1)


def shine(bottle: Bottle, surface: Floats, occlusion: Floats, imprint: float, generator: np.random.Generator) -> Floats:
    """[3, CANVAS, CANVAS]: light from one side over a soft ambient, on pills, amber glass and the table around."""
    product, centre, bed, light = bottle
    height = generator.uniform(0.75, 0.95)
    ambient = generator.uniform(0.35, 0.55)
    warmth = generator.normal(0, 0.035)
    lamp = generator.uniform(0.85, 1.08) * _channels(1 + warmth, 1, 1 - warmth)
    cos, sin = float(np.cos(light)), float(np.sin(light))

    nx, ny, depth, albedo = np.ascontiguousarray(surface.transpose(2, 0, 1))
    nx[:, 1:-1] += 0.9 * imprint * (depth[:, 2:] - depth[:, :-2])
    ny[1:-1] += 0.9 * imprint * (depth[2:] - depth[:-2])
    nz = np.sqrt(np.maximum(1 - nx * nx - ny * ny, 0.02))
    facing = (1 - height**2) ** 0.5 * (cos * nx + sin * ny) + height * nz
    diffuse = np.maximum(0.25 + 0.75 * facing, 0)  # light scatters inside a pill: its far side is not black
    shade = ambient * occlusion + 1.1 * (1 - ambient) * diffuse * (0.35 + 0.65 * occlusion)
    shade *= albedo * (1 - 0.3 * imprint * depth)
    highlight = product.gloss * np.square(np.square(np.square(np.square(diffuse)))) * occlusion
    rgb = shade * (_channels(*COLOURS[product.colour]) * _channels(*generator.normal(1, 0.012, 3))) + highlight

    amber = generator.uniform(0.85, 1.1) * _channels(0.80, 0.40, 0.10)
    rim = generator.uniform(1.10, 1.2)  # all radii are in units of the bed's
    dy, dx = ((np.arange(CANVAS, dtype=np.float32) - float(c)) / bed for c in centre)
    r = np.sqrt(dy[:, None] ** 2 + dx**2)
    lit = (cos * dx + sin * dy[:, None]) / (r + 0.01)  # 1 on the lamp's side, -1 opposite
    # pills near the glass lie in its shade and take its colour
    rgb *= 1 - np.square(np.clip((r - 0.55) / 0.45, 0, 1)) * (0.65 - 0.5 * amber)
    np.copyto(rgb, 0.16 * amber, where=albedo == 0)
    up = np.clip((r - 1) / (rim - 1), 0, 1)
    rgb += np.clip((r - 1) * bed / 1.5, 0, 1) * ((0.22 + 0.4 * up * up - 0.25 * lit * (1 - up)) * amber - rgb)
    table = generator.uniform(0.4, 1.3) * _channels(0.30, 0.27, 0.25)
    beyond = np.maximum(r - rim, 0)
    rgb += np.clip((beyond - 0.05) * bed / 1.5, 0, 1) * ((1 - 0.5 * np.exp(-7 * beyond)) * table - rgb)
    rgb += np.exp(-np.square((r - rim - 0.03) / 0.022)) * (0.45 + 0.4 * lit) * (amber + 0.25)
    return np.asarray(rgb * lamp, np.float32)


def _channels(*values: float) -> Floats:
    return np.array(values, np.float32).reshape(3, 1, 1)
