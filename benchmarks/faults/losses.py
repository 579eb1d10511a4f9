"""Odd losses: 0, -1, NaN, Inf, 1e-300 and 1e300 among ordinary ones, in every weighting that depends on losses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from equipoise import Method, parse
from equipoise.engine.checks import SIMULATION_CHECKS, Expected, check_numbers
from equipoise.types import Replies, Round, Setting, State
from equipoise.updates import Updates
from faults.table import Row

DRIVEN = (
    "qffl(q=1)", "qffl(q=2)", "qffl(q=5)", "fedfe(q=2)", "afl(lambda_first=True)", "afl(variant='released')",
    "term(t=5)", "gifair", "feddg_ga", "aaggff", "aaggff(setting='device')",
)  # fmt: skip
ODD = (0.0, -1.0, math.nan, math.inf, 1e-300, 1e300)


def weigh_odd_losses(count: int, methods: Sequence[str] = DRIVEN, seed: int = 0) -> list[Row]:
    """Weigh random rounds with odd losses, and see whether the shares are finite, not negative, and sum to 1."""
    rows = []
    for text in methods:
        method, draw, good, refused, worst = parse(text), random.Random(seed), 0, 0, 0.0
        for _ in range(count):
            found, impossible = draw_round(method, draw)
            refused += impossible
            if found is None:
                good += 1
                continue
            first = method.weigh(found, State())
            again = replace(found, round=1)  # some weightings have no losses to compare with in a first round
            weights = method.weigh(again, State(first.state)).weights
            part = weights if method.weigh.is_convex else weights / weights.sum()
            error = abs(float(part.sum()) - 1)
            good += bool(torch.isfinite(part).all()) and bool((weights >= 0).all()) and error <= 1e-12
            worst = max(worst, error)
        figure = (
            f"{good} of {count} vectors give finite shares that are not negative and sum to 1 (at most {worst:.0e} "
            f"off); {refused} impossible losses refused"
        )
        rows.append(Row(f"odd losses, {text}", count, figure))
    return rows


def draw_round(method: Method, draw: random.Random) -> tuple[Round | None, int]:
    """A round of clients with ordinary and odd losses, without those whose answers do not count; and how many these
    are."""
    m = draw.randint(2, 8)
    losses = [draw.choice(ODD) if draw.random() < 0.4 else 10 ** draw.uniform(-6, 6) for _ in range(m)]
    first, *others = [name for name in method.weigh.needs if name.startswith("loss")]
    reports = {"samples": torch.full((m,), 7.0), first: torch.tensor(losses, dtype=torch.float64)}
    reports |= {name: reports[first].flip(0) for name in others}
    wanted = Expected(0, frozenset(range(m)), {}, None, {}, torch.float64, {})
    sent = Replies(tuple(range(m)), reports, torch.ones(m, 2, dtype=torch.float64))
    replies, refused = check_numbers(sent, wanted, SIMULATION_CHECKS)
    if replies is None or replies.updates is None:
        return None, len(refused)
    theta, rows = torch.zeros(2, dtype=torch.float64), replies.updates
    setting = Setting(num_clients=m, lr=0.1, rounds=2)
    return Round(theta, replies.clients, replies.reports, 0, setting, rows, Updates(rows)), len(refused)
