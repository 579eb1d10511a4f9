"""Who takes part under a selection: six clients of different sizes and losses over the rounds of a day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from matplotlib import pyplot as plt

from equipoise import parse
from equipoise.rounds import find_candidates, select_clients
from equipoise.types import Memory, Round, Setting, State, Turnout
from pictures_of.drawing import COLOURS, GREY

ROUNDS, PLACES = 24, 2
SAMPLES = {0: 60.0, 1: 50.0, 2: 40.0, 3: 30.0, 4: 20.0, 5: 10.0}
LOSSES = torch.tensor([0.3, 0.4, 0.9, 0.5, 1.2, 0.7], dtype=torch.float64)


def draw_selection(text: str) -> Callable[[], plt.Figure]:
    """Rounds from left to right: a filled square took part, a ring was a candidate. Beside it each client's share."""

    def draw() -> plt.Figure:
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(6.4, 2.3), width_ratios=(4, 1), sharey=True, layout="constrained"
        )
        method, memory, setting = parse(text), Memory(), Setting(seed=1, num_clients=len(SAMPLES))
        often = [0] * len(SAMPLES)
        for r in range(ROUNDS):
            turnout = Turnout(range(len(SAMPLES)), PLACES, SAMPLES, r, setting)
            asked = find_candidates(method, turnout, memory)
            reports = dict.fromkeys(method.select.asks, LOSSES[asked])
            chosen, memory = select_clients(method, replace(turnout, candidates=tuple(asked), reports=reports), memory)
            clients = tuple(chosen.clients)
            seen = Round(torch.zeros(1), clients, dict.fromkeys(method.select.needs, LOSSES[list(clients)]), r, setting)
            kept = method.select.remember(seen, State(memory.parts.get(method.select.key, {})))
            memory = replace(memory, parts={**memory.parts, method.select.key: kept})
            left.plot([r] * len(asked), asked, "o", mfc="none", mec=GREY, ms=6)
            left.plot([r] * len(clients), clients, "s", color=COLOURS[0], ms=5)
            for client in clients:
                often[client] += 1
        right.barh(range(len(SAMPLES)), [100 * n / ROUNDS for n in often], color=COLOURS[0], height=0.6)
        names = [
            f"{int(n)} samples, loss {loss:.1f}" for n, loss in zip(SAMPLES.values(), LOSSES.tolist(), strict=True)
        ]
        left.set(yticks=range(len(SAMPLES)), yticklabels=names, xlabel="round", ylim=(5.6, -0.6), title=text)
        right.set(xlabel="% of rounds", xlim=(0, 105))
        return figure

    return draw
