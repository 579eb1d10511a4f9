"""Further selections, to be added to any method: by samples, the worst first, by the hours of the day, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from equipoise import seeds
from equipoise.method import (
    EquipoiseError,
    Method,
    Remembered,
    Round,
    Select,
    Selected,
    State,
    Turnout,
    register,
    require,
)
from equipoise.parts.gaps import LossGap
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.selections import draw_by_samples, draw_uniformly, rank_largest
from equipoise.parts.weights import Uniform

DAY = 24  # hours


# --------------------------------------------------------------------------- by samples
@dataclass(frozen=True)
class SampleDraw(Select, by_columns=()):
    """Draws clients without replacement, with chances proportional to their training samples."""

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        return Selected(draw_by_samples(turnout, turnout.places))


@register(
    title="A client takes part the more often, the more samples it has",
    reference="Li, Huang, Yang, Wang, Zhang, On the convergence of FedAvg on non-IID data, ICLR 2020",
)
def select_by_samples() -> Method:
    """Clients are drawn with chances proportional to their samples, and those drawn count the same."""
    return Method(select=SampleDraw(), weigh=Uniform())


# --------------------------------------------------------------------------- the worst first
@dataclass(frozen=True)
class WorstFirst(Select, by_columns=()):
    """A share of the places goes to the clients with the largest last known values, the others are drawn uniformly.

    A client of which no value is known yet comes before all others, so that everyone is tried.
    """

    by: Literal["loss", "gap"]  # the report that is compared
    quota: float  # the share of the places

    @property
    def needs(self) -> tuple[str, ...]:
        """The report that is compared."""
        return (self.by,)

    @property
    def remembers(self) -> str:
        """Each client's last value."""
        return f"its last {self.by}"

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        known = state.rows(self.by, default=torch.tensor(torch.inf, dtype=torch.float64))
        values = {c: known[c].item() for c in turnout.available}
        reserved = max(round(self.quota * turnout.places), 1) if self.quota else 0
        first = rank_largest(turnout, values)[:reserved]
        rest = [c for c in turnout.available if c not in first]
        drawn = draw_uniformly(turnout, rest, turnout.places - len(first)) if len(first) < turnout.places else []
        others = f"not among the worst {reserved} by its last {self.by}, and not drawn"
        return Selected([*first, *drawn], others=others, values=values)

    def remember(self, round: Round, state: State) -> Remembered:
        """The values that the round's clients reported."""
        return {self.by: state.rows(self.by).put(round.clients, round.reports[self.by].double())}


@register(title="A share of the places goes to the clients that are worst off", reference="a selection, no paper")
def select_worst(by: Literal["loss", "gap"] = "loss", quota: float = 0.5) -> Method:
    """`quota` of the places go to the clients with the largest last known values, the others are drawn uniformly.

    `by="loss"` compares the loss of the received model, `by="gap"` that loss minus the one that the client reaches
    alone, both on training data. `quota=0` is the uniform draw, `quota=1` always takes the worst.
    """
    require(0 <= quota <= 1, "quota", "from 0 to 1", quota)
    return Method(select=WorstFirst(by, quota), reports=(GlobalLoss() if by == "loss" else LossGap(split="train"),))


# --------------------------------------------------------------------------- by the hours of the day
@dataclass(frozen=True)
class DailyHours(Select, by_columns=()):
    """Draws uniformly among the clients that are there at the hour of the round.

    If nobody is, the round waits for the next client.
    """

    fills_places: ClassVar[bool] = False

    opens: tuple[float, ...]  # the hour at which each client comes, in the order of clients; empty: drawn by the seed
    length: float  # hours that each client stays
    per_day: int  # rounds of a day

    def check(self, places: int, clients: int) -> None:
        """There must be an hour for every client."""
        if self.opens and len(self.opens) != clients:
            raise EquipoiseError(
                f"select_by_hours needs one hour in `opens` for each of the {clients} clients. Found {len(self.opens)}."
            )

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        seed = turnout.setting.seed
        comes = {
            c: self.opens[c] if self.opens else float(seeds.key(seed, "hours", c) % DAY) for c in turnout.available
        }
        hour = DAY * (turnout.round % self.per_day) / self.per_day
        if not any(self._is_there(come, hour) for come in comes.values()):
            hour = min(comes.values(), key=lambda come: (come - hour) % DAY)
        there = [c for c, come in comes.items() if self._is_there(come, hour)]
        away = {
            c: f"away at {_clock(hour)}: it is there from {_clock(come)} to {_clock(come + self.length)}"
            for c, come in comes.items()
            if c not in there
        }
        return Selected(draw_uniformly(turnout, there, turnout.places), why=away)

    def _is_there(self, comes: float, hour: float) -> bool:
        return (hour - comes) % DAY < self.length


def _clock(hour: float) -> str:
    """An hour of the day as a clock shows it.

    >>> _clock(26.5)
    '02:30'
    """
    minutes = round(60 * hour) % (60 * DAY)
    return f"{minutes // 60:02}:{minutes % 60:02}"


@register(title="Clients take part at the hours at which they are there", reference="a selection, no paper")
def select_by_hours(opens: tuple[float, ...] = (), length: float = 8.0, per_day: int = 24) -> Method:
    """Round t is at hour `24 t / per_day` of the day; the places are drawn among the clients that are there then.

    A client comes at its hour in `opens` (one per client, in their order; by default drawn by the run's seed) and stays
    for `length` hours, also past midnight. If nobody is there, the round waits for the next client.
    """
    for hour in opens:
        require(0 <= hour < DAY, "opens", f"hours from 0 to below {DAY}", opens)
    require(0 < length <= DAY, "length", f"above 0 and at most {DAY}", length)
    require(per_day >= 1, "per_day", "at least 1", per_day)
    return Method(select=DailyHours(opens, length, per_day))


# --------------------------------------------------------------------------- in turn
@dataclass(frozen=True)
class InTurn(Select, by_columns=()):
    """Takes the clients in the order of their numbers, and begins again after the last.

    With `shuffled`, each such cycle has a random order of its own.
    """

    shuffled: bool = False

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        turn = int(state.tensor("turn", torch.tensor(0)))
        if self.shuffled:
            chosen, after = self._follow_orders(turnout, turn)
        else:
            chosen = sorted(turnout.available, key=lambda c: (c < turn, c))[: turnout.places]
            after = chosen[-1] + 1
        return Selected(chosen, {"turn": torch.tensor(after)}, others="its turn comes later")

    def _follow_orders(self, turnout: Turnout, turn: int) -> tuple[list[int], int]:
        """The next clients that are available, in random orders one after the other from place `turn` on; and the place
        behind the last of them."""
        total, seed = turnout.setting.num_clients or max(turnout.available) + 1, turnout.setting.seed
        chosen: list[int] = []
        while len(chosen) < min(turnout.places, len(turnout.available)):
            cycle, place = divmod(turn, total)
            client = int(seeds.permutation(total, seed, "turns", cycle)[place])
            turn += 1
            if client in turnout.available and client not in chosen:
                chosen.append(client)
        return chosen, turn


@register(title="Clients take part in turn", reference="a selection, no paper")
def select_in_turn(shuffled: bool = False) -> Method:
    """Round by round the next clients take part, in the order of their numbers; an absent one is passed over.

    With one client per round this is cyclic training: the model goes from client to client. `shuffled` draws a new order
    for each cycle, as FLamby does.
    """
    return Method(select=InTurn(shuffled))
