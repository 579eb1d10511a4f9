"""Pictures of a federation: who holds what, and what it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federation import Federation
from equipoise.errors import EquipoiseError

SAMPLES = 6  # images shown of each domain
MOST_NAMES = 40  # with more clients, the bars have no names
MOST_DOMAINS = 8  # with more domains, images are not shown domain by domain
INK, LINES = "#333333", "#dddddd"


def draw(federation: Federation, path: Path) -> Path:
    """Draw one picture: bars that show the classes of each client and, for image data, some images of every domain."""
    from matplotlib.figure import Figure

    rows = _rows(federation) if federation.x.dim() == 4 else []
    height = min(max(0.24 * len(federation), 3.0), 8.0)
    figure = Figure(figsize=(11.0, max(height + 1.4, 1.1 * len(rows) + 0.8)), layout="constrained")
    parts: Any = figure.subfigures(1, 2 if rows else 1, width_ratios=(6, 5) if rows else None, squeeze=False)[0]
    _bars(federation, parts[0])
    if rows:
        _samples(federation, rows, parts[1])
    figure.suptitle(
        f"{federation.name}: {len(federation)} clients, {federation.total_samples:,} training samples", color=INK
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise EquipoiseError(f"Cannot write the picture `{path}`: {error.strerror}. Choose another --out.") from None
    return path


def _bars(federation: Federation, figure: Any) -> None:
    """One bar per client and one colour per class, with the first client on top."""
    import matplotlib

    axes = figure.subplots()
    counts = federation.class_counts().numpy()
    many = len(federation.classes) > 10
    colours = matplotlib.colormaps["turbo" if many else "tab10"]
    place = np.arange(len(federation))
    start = np.zeros(len(federation))
    for label, name in enumerate(federation.classes):
        shade = colours(label / max(1, len(federation.classes) - 1)) if many else colours(label)
        axes.barh(place, counts[:, label], left=start, color=shade, height=0.8, label=name)
        start += counts[:, label]
    axes.invert_yaxis()
    axes.margins(y=0.01)
    few = len(federation) <= MOST_NAMES
    axes.set_yticks(place if few else [], [c.name for c in federation.clients] if few else [])
    axes.set_ylabel("" if few else f"{len(federation)} clients")
    axes.set_xlabel("training samples, by class", color=INK, fontsize=9)
    axes.tick_params(colors=INK, labelsize=8, length=0)
    axes.grid(axis="x", color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if many:
        axes.set_title(
            f"{len(federation.classes)} classes, {federation.classes[0]} to {federation.classes[-1]}",
            fontsize=9,
            color=INK,
        )
    else:
        figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False, handlelength=1.0, labelcolor=INK)


def _rows(federation: Federation) -> list[tuple[str, list[int]]]:
    """Titles, and the images beside them: one row per domain or, with many domains, some rows from all clients."""
    held = {
        d: torch.cat([c.train for c in federation.clients if (c.domain or c.name) == d]) for d in federation.domains
    }
    if len(held) <= MOST_DOMAINS:
        return [(domain, _of_every_class(index, federation.y, SAMPLES)) for domain, index in held.items()]
    some = _of_every_class(torch.cat(list(held.values())), federation.y, 5 * SAMPLES)
    return [("", some[start : start + SAMPLES]) for start in range(0, len(some), SAMPLES)]


def _of_every_class(index: Tensor, y: Tensor, count: int) -> list[int]:
    """`count` positions: one of every class, then a second one of every class, and so on."""
    members = [index[y[index] == label].tolist() for label in y[index].unique().tolist()]
    rounds = [own[turn] for turn in range(count) for own in members if turn < len(own)]
    return rounds[:count]


def _samples(federation: Federation, rows: list[tuple[str, list[int]]], figure: Any) -> None:
    """A grid of images, each with its class."""
    grid = figure.subplots(len(rows), SAMPLES, squeeze=False)
    for places, (title, positions) in zip(grid, rows, strict=True):
        for axes in places:
            axes.set_axis_off()
        for axes, position in zip(places, positions, strict=False):
            axes.imshow(_shown(federation.x[position]), cmap="gray", interpolation="nearest")
            axes.set_title(federation.classes[int(federation.y[position])][:12], fontsize=7, color=INK, pad=2)
        places[0].text(-0.12, 0.5, title, transform=places[0].transAxes, ha="right", va="center", fontsize=9, color=INK)


def _shown(image: Tensor) -> np.ndarray:
    pixels = image.permute(1, 2, 0).float()
    pixels = (
        pixels / 255 if image.dtype == torch.uint8 else (pixels - pixels.min()) / (pixels.max() - pixels.min() + 1e-9)
    )
    return pixels[..., 0].numpy() if pixels.shape[-1] == 1 else pixels.numpy()
