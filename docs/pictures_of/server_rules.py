"""Rules of the server, as they act on the updates of three clients: directions as arrows, weights as bars or lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from matplotlib import pyplot as plt

from equipoise import Aggregated, aggregate, parse
from equipoise.parts.conflicts import project_conflicts
from equipoise.parts.terms import unit
from pictures_of.drawing import (
    COLOURS,
    DARK,
    FACTS,
    GREY,
    NAMES,
    REPORTS,
    UPDATES,
    draw_arrow,
    draw_updates,
    draw_weight_bars,
    draw_weights_over,
    set_plane,
)


def play(method: str, rounds: int = 1) -> Aggregated:
    """The rule after some rounds in which the clients reported the same."""
    result = None
    for _ in range(rounds):
        result = aggregate(
            parse(method), torch.zeros(2, dtype=torch.float64), UPDATES, clients=(0, 1, 2), reports=REPORTS,
            server=result.server if result else None, **FACTS,
        )  # fmt: skip
    assert result is not None
    return result


def draw_rule(method: str, shown: str = "", rounds: int = 1) -> Callable[[], plt.Figure]:
    """Three updates, FedAvg's direction and the method's, and the weights of both."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
        plain, found = play("fedavg"), play(method, rounds)
        name = shown or method.split("(")[0]
        directions = {"fedavg": (plain.direction, GREY), name: (found.direction, DARK)}
        draw_updates(left, directions, "three clients' updates, and what becomes of them")
        draw_weight_bars(right, {"fedavg": plain.weights.tolist(), name: found.weights.tolist()})
        return figure

    return draw


def draw_by_strength(name: str, parameter: str, values: Sequence[float], rest: str = "") -> Callable[[], plt.Figure]:
    """Three updates and the directions for several strengths; the weights over the strength."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
        found = [play(f"{name}({parameter}={value}{rest})") for value in values]
        shades = [str(0.75 - 0.7 * i / (len(values) - 1)) for i in range(len(values))]
        directions = {f"{v:g}": (one.direction, shade) for v, one, shade in zip(values, found, shades, strict=True)}
        draw_updates(left, directions, f"three clients' updates, and the direction for {parameter} =")
        draw_weights_over(
            right, parameter, values, [one.weights / one.weights.sum() for one in found], "share of the weights"
        )
        return figure

    return draw


def draw_over_rounds(method: str, rounds: Sequence[int], shown: Sequence[int], title: str) -> Callable[[], plt.Figure]:
    """The direction and the weights over rounds in which the clients report the same."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
        found = {r: play(method, r) for r in rounds}
        shades = ("0.75", "0.5", "0.3", "0.05")
        directions = {f"{r}": (found[r].direction, shade) for r, shade in zip(shown, shades, strict=True)}
        draw_updates(left, directions, "three clients' updates, and the direction in round")
        draw_weights_over(right, "round", rounds, [one.weights for one in found.values()], title)
        return figure

    return draw


def draw_fedfv() -> plt.Figure:
    """FedFV: conflicting updates, their projections, and the direction beside the plain mean."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.4), layout="constrained")
    gram = UPDATES @ UPDATES.T
    rows = project_conflicts(gram, torch.argsort(REPORTS["loss"]), torch.ones(3, dtype=torch.bool)) @ UPDATES
    for k in range(3):
        draw_arrow(left, UPDATES[k], COLOURS[k], NAMES[k])
        left.plot(*torch.stack([UPDATES[k], rows[k]]).T, ":", color=COLOURS[k])
        draw_arrow(right, rows[k], COLOURS[k], f"{NAMES[k]}'")
    shown = (("fedavg(weights='uniform')", "plain mean", GREY), ("fedfv(alpha=0, tau=0)", "fedfv", DARK))
    for method, name, colour in shown:
        draw_arrow(right, play(method).direction, colour, width=2.4)
        right.plot([], [], color=colour, label=name)
    set_plane(left, "A and C conflict: each gives up\nits part along the other")
    set_plane(right, "projected, and their mean\nat the plain mean's length")
    right.legend(loc="lower left", ncols=2, fontsize=7)
    return figure


def draw_fedmgda_plus() -> plt.Figure:
    """FedMGDA+: unit updates, their convex hull, and the min-norm direction for several widths of the search."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.6), width_ratios=(3, 2), layout="constrained")
    units = unit(UPDATES)
    values = (0.0, 0.1, 0.3, 1.0)
    found = [play(f"fedmgda_plus(eps={eps})") for eps in values]
    left.fill(*torch.cat([units, units[:1]]).T, color=GREY, alpha=0.15, lw=0)
    for k in range(3):
        draw_arrow(left, units[k], COLOURS[k], NAMES[k])
    for eps, one, shade in zip(values, found, ("0.75", "0.5", "0.3", "0.05"), strict=True):
        draw_arrow(left, one.direction, shade, width=2.2)
        left.plot([], [], color=shade, label=f"{eps:g}")
    set_plane(left, "unit updates, and the direction for eps =", (-1.3, 1.6), (-0.55, 1.2))
    left.legend(loc="lower left", ncols=4, fontsize=7, handlelength=1.2)
    draw_weights_over(right, "eps", values, [one.weights for one in found], "weights")
    return figure


def draw_per_tensor(method: str, weights: bool) -> Callable[[], plt.Figure]:
    """Two tensors of two entries each: what FedAvg and the method do in each."""

    def draw() -> plt.Figure:
        figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
        rows = torch.cat([UPDATES, torch.tensor([[0.4, 1.6], [-0.3, 0.7], [1.9, -0.2]], dtype=torch.float64)], 1)
        reports = {
            name: value for name, value in REPORTS.items() if name != "fisher"
        }  # that one is as long as an update
        found, plain = (
            aggregate(
                parse(text), torch.zeros(4, dtype=torch.float64), rows, clients=(0, 1, 2), reports=reports,
                layout={"first": (2,), "second": (2,)}, **FACTS,
            )
            for text in (method, "fedavg")
        )  # fmt: skip
        assert found.tensor_weights is not None
        for i, (axes, name) in enumerate(zip(panels, ("first", "second"), strict=True)):
            here = slice(2 * i, 2 * i + 2)
            for k in range(3):
                weight = f" {found.tensor_weights[k, i]:.2f}" if weights else ""
                draw_arrow(axes, rows[k, here], COLOURS[k], NAMES[k] + weight)
            for label, direction, colour in (("fedavg", plain.direction, GREY), (method, found.direction, DARK)):
                draw_arrow(axes, direction[here], colour, width=2.4)
                axes.plot([], [], color=colour, label=label)
            set_plane(axes, f"{name} tensor: updates and directions", (-1.9, 2.9))
        panels[0].legend(loc="lower left", ncols=2, fontsize=7)
        return figure

    return draw
