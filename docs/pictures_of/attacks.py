"""An attacker among six clients: what becomes of it, and of the direction of all."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from equipoise import Aggregated, aggregate, parse
from pictures_of.drawing import COLOURS, DARK, GREY, RED, draw_arrow, set_plane

HONEST = [[1.5, 0.25], [1.3, -0.2], [1.6, 0.0], [1.4, 0.1]]
ROWS = torch.tensor([*HONEST, [0.0, 1.3], [-4.2, -0.6]], dtype=torch.float64)  # then a minority, and an attacker


def merge(method: str) -> Aggregated:
    """The rule for the six updates."""
    theta, reports = torch.zeros(2, dtype=torch.float64), {"samples": torch.ones(6, dtype=torch.float64)}
    return aggregate(parse(method), theta, ROWS, clients=range(6), reports=reports)


def draw_robust() -> plt.Figure:
    """The updates as they were sent, and as the robust composition lets them through."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.4), width_ratios=(5, 4), layout="constrained")
    plain, found = merge("fedavg"), merge("fedavg + robust")
    through: list[Tensor] = [*ROWS[:5]]
    for k, row in enumerate(ROWS):
        name = {4: "minority", 5: "attacker"}.get(k, "")
        draw_arrow(left, row, RED if k == 5 else COLOURS[0] if k < 4 else COLOURS[1], name)
    for row in through:
        draw_arrow(right, row, COLOURS[1] if row is through[4] else COLOURS[0])
    draw_arrow(right, 6 * found.direction - ROWS[:5].sum(0), RED, "its place")
    for axes, one, name in ((left, plain, "fedavg"), (right, found, "fedavg + robust")):
        draw_arrow(axes, one.direction, GREY if one is plain else DARK, width=2.6)
        axes.plot([], [], color=GREY if one is plain else DARK, lw=2.6, label=name)
        axes.legend(loc="lower right", fontsize=7)
    set_plane(left, "six updates, and their mean", (-5.6, 2.4), (-1.4, 1.8))
    set_plane(right, "the centre stands for the attacker", (-1.4, 3.4), (-1.4, 1.8))
    return figure
