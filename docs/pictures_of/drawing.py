"""What the pictures share: their style, the three clients that most of them show, arrows, planes and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from torch import Tensor

from equipoise.parts.terms import unit

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "equipoise",  # the same picture gives the same file
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "lines.linewidth": 1.6,
}
COLOURS = ("#0072B2", "#E69F00", "#009E73")
NAMES = ("A", "B", "C")
GREY, DARK, RED = "#999999", "#222222", "#CC3311"

# Three clients: A is large and well served, C small and badly served, and pulls against A.
UPDATES = torch.tensor([[2.0, 0.2], [0.7, 1.3], [-1.1, 0.9]], dtype=torch.float64)
REPORTS = {
    "samples": torch.tensor([60.0, 30.0, 10.0], dtype=torch.float64),
    "loss": torch.tensor([0.4, 1.0, 2.0], dtype=torch.float64),
    "gap": torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
    "fisher": torch.tensor([[0.2, 0.1], [0.4, 0.3], [0.3, 0.8]], dtype=torch.float64),
    "personal": torch.tensor([[1.0, 0.2], [0.9, 0.5], [-0.6, 1.0]], dtype=torch.float64),
    "loss_valid": torch.tensor([0.5, 1.1, 2.1], dtype=torch.float64),
    "loss_valid_trained": torch.tensor([0.45, 0.8, 1.2], dtype=torch.float64),
}
FACTS: dict[str, Any] = {"num_clients": 3, "rounds": 10, "num_classes": 10, "num_domains": 3, "total_samples": 100}
OPTIMA = torch.tensor([[2.0, 0.0], [0.4, 1.6], [-1.6, 1.2]])  # of the three clients' bowls


def draw_arrow(
    axes: Axes, end: Tensor, colour: str, label: str = "", start: Tensor | None = None, width: float = 1.6
) -> None:
    """An arrow with its name beyond its head."""
    origin = torch.zeros(2, dtype=end.dtype) if start is None else start
    style = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11}
    axes.annotate("", end.tolist(), origin.tolist(), arrowprops=style)
    if label:
        x, y = (9 * unit(end - origin)).tolist()
        side = "left" if x > 3 else "right" if x < -3 else "center"
        axes.annotate(
            label, end.tolist(), textcoords="offset points", xytext=(x, y), color=colour, ha=side, va="center"
        )


def set_plane(
    axes: Axes, title: str, x: tuple[float, float] = (-1.7, 2.7), y: tuple[float, float] = (-0.9, 1.9)
) -> None:
    """No ticks, equal scales."""
    axes.set(xlim=x, ylim=y, aspect="equal", xticks=[], yticks=[], title=title)
    axes.spines[["left", "bottom"]].set_visible(False)


def draw_updates(axes: Axes, directions: Mapping[str, tuple[Tensor, str]], title: str) -> None:
    """The updates of the three clients, and a thick arrow for each direction."""
    for k in range(3):
        draw_arrow(axes, UPDATES[k], COLOURS[k], NAMES[k])
    for label, (direction, colour) in directions.items():
        draw_arrow(axes, direction, colour, width=2.4)
        axes.plot([], [], color=colour, lw=2.4, label=label)
    set_plane(axes, title)
    axes.legend(loc="lower left", ncols=len(directions), fontsize=7, columnspacing=1.0, handlelength=1.2)


def draw_weight_bars(axes: Axes, rows: Mapping[str, Sequence[float]], title: str = "weights") -> None:
    """Bars of A, B, C for each row."""
    height = 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        at = [2 - k + 0.4 - height * (i + 0.5) for k in range(3)]
        axes.barh(at, values, height * 0.9, color=COLOURS, alpha=1.0 if i == len(rows) - 1 else 0.35)
        for y, value in zip(at, values, strict=True):
            axes.annotate(
                f"{label} {value:.2f}", (max(value, 0), y), textcoords="offset points", xytext=(3, -3), fontsize=7
            )
    axes.set(yticks=[2, 1, 0], yticklabels=NAMES, title=title, xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.5)


def draw_weights_over(axes: Axes, name: str, values: Sequence[float], weights: Sequence[Tensor], title: str) -> None:
    """One line per client."""
    for k in range(3):
        axes.plot(range(len(values)), [float(w[k]) for w in weights], "o-", color=COLOURS[k], label=NAMES[k], ms=4)
    axes.set(
        xticks=range(len(values)), xticklabels=[f"{v:g}" for v in values], xlabel=name, title=title, ylim=(0, 1.02)
    )
    axes.legend(fontsize=7)
