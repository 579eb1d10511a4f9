"""Generated images that stand in for files that are missing: digits drawn with fonts, and blends of handwritten digits.

They are called *generated* wherever they show up. The same seed gives the same images (with the same version of Pillow,
which draws the letters).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from equipoise import seeds
from equipoise.data.cache import Pictures, PictureSet

VERSION = "1"  # raise it when the images change: cached ones are then drawn again
SIZE, CANVAS = 32, 64  # images are drawn at twice their size
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmb10", "cmr10", "cmss10", "cmtt10",
)  # fmt: skip
CONTRAST = 70  # least difference of brightness between a digit and its background


def draw_digits(split: str, count: int, seed: int = 0) -> PictureSet:
    """`count` digits in many fonts, colours and slants, on cluttered backgrounds."""

    def load() -> Pictures:
        draw = _generator(seed, "drawn digits", split)
        labels = [i % 10 for i in range(count)]
        return Pictures([_digit(label, draw) for label in labels], labels, lambda i: f"generated digit {i}")

    return PictureSet(f"generated/{split}", (), load, f"{VERSION} {count} {seed}")


def _generator(*path: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seeds.key(*path)))


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib  # it brings its fonts along, so that every machine has the same ones

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)


def _digit(label: int, draw: np.random.Generator) -> np.ndarray:
    """One image `[32, 32, 3]`."""
    background = _background(draw)
    brightness = float(background.mean())
    for _ in range(int(draw.integers(0, 3))):  # neighbours that reach into the picture, as on a street sign
        side = int(draw.choice([-1, 1])) * int(draw.integers(26, 36))
        _stamp(background, str(draw.integers(10)), side, _colour(draw, brightness), draw)
    _stamp(background, str(label), 0, _colour(draw, brightness), draw)
    image = Image.fromarray(background.clip(0, 255).astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(float(draw.uniform(0, 1.2)))).resize(
        (SIZE, SIZE), Image.Resampling.BOX
    )
    noise = draw.normal(0, draw.uniform(0, 12), (SIZE, SIZE, 1))
    return (np.asarray(image) + noise).clip(0, 255).astype(np.uint8)


def _background(draw: np.random.Generator) -> np.ndarray:
    """A gradient between two colours, with a few lines and discs on it."""
    first, second = draw.uniform(0, 255, (2, 3))
    slope = np.linspace(0, 1, CANVAS)[:, None] * np.cos(angle := draw.uniform(0, np.pi)) + np.linspace(
        0, 1, CANVAS
    ) * np.sin(angle)
    slope = (slope - slope.min()) / np.ptp(slope)
    canvas = Image.fromarray((first + slope[..., None] * 0.6 * (second - first)).astype(np.uint8))
    pen = ImageDraw.Draw(canvas)
    for _ in range(int(draw.integers(0, 4))):
        ends = tuple(int(v) for v in draw.integers(-10, CANVAS + 10, 4))
        colour = tuple(int(v) for v in (first + second) / 2 + draw.uniform(-50, 50, 3))
        if draw.random() < 0.5:
            pen.line(ends, colour, int(draw.integers(1, 6)))
        else:
            radius = int(draw.integers(3, 14))
            pen.ellipse((ends[0] - radius, ends[1] - radius, ends[0] + radius, ends[1] + radius), colour)
    return np.asarray(canvas).astype(np.float32)


def _colour(draw: np.random.Generator, brightness: float) -> np.ndarray:
    """A colour that stands out from the background."""
    colour = draw.uniform(0, 255, 3)
    if abs(colour.mean() - brightness) < CONTRAST:
        colour += (CONTRAST if brightness < 128 else -CONTRAST) + brightness - colour.mean()
    return colour.clip(0, 255)


def _stamp(canvas: np.ndarray, text: str, across: int, colour: np.ndarray, draw: np.random.Generator) -> None:
    """Write a digit into the canvas: turned, slanted and shifted at random."""
    font = _font(str(draw.choice(FONTS)), int(draw.integers(38, 56)))
    mask = Image.new("L", (CANVAS, CANVAS))
    centre = CANVAS / 2
    ImageDraw.Draw(mask).text((centre, centre), text, fill=255, font=font, anchor="mm")
    slant, turn = draw.uniform(-0.35, 0.35), draw.uniform(-0.35, 0.35)
    x, y = centre + across + draw.uniform(-5, 5), centre + draw.uniform(-5, 5)
    # Pillow wants the inverse map: from a place of the result back to one of the drawn digit.
    inverse = np.array([[1, slant], [0, 1]]) @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    offset = np.array([centre, centre]) - inverse @ np.array([x, y])
    coefficients = (*inverse[0], offset[0], *inverse[1], offset[1])
    mask = mask.transform(mask.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    share = np.asarray(mask, dtype=np.float32)[..., None] / 255
    canvas += share * (colour.astype(np.float32) - canvas)


def blend_digits(images: np.ndarray, labels: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ambiguous images `[count, ...]`: two digits of different classes in one, labelled as either of them.

    A fair coin decides which of the two, so that a model can hardly be right on more than half of them.
    """
    draw = _generator(seed, "blended digits")
    first = draw.integers(len(images), size=count)
    others = _with_other_label(labels, first, draw)
    weight = draw.uniform(0.4, 0.6, size=(count, *[1] * (images.ndim - 1)))
    mixed = weight * images[first] + (1 - weight) * images[others]
    brightest = mixed.reshape(count, -1).max(1).reshape(-1, *[1] * (images.ndim - 1))
    mixed = (mixed * 255 / np.maximum(brightest, 1)).astype(np.uint8)
    return mixed, np.where(draw.random(count) < 0.5, labels[first], labels[others])


def _with_other_label(labels: np.ndarray, chosen: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """For each chosen sample, a random one of another class."""
    by_class: Sequence[np.ndarray] = [np.flatnonzero(labels != label) for label in range(int(labels.max()) + 1)]
    return np.array([draw.choice(by_class[labels[i]]) for i in chosen])
