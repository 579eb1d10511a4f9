"""The signs of updates, counted while a run goes on: how often each entry of a client's update rose (`--keep consistency`).

Two parts look on in a run, of any method. Clients report which entries of their updates rose, a bit each, and the server
adds that up. So every runner has it, also where updates are summed as soon as they are computed; a checkpoint has it,
because the server remembers it; and no number of the run depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.engine.result import Run
from equipoise.method import Report, Round, Sent, Share, State, Tensors, Trained, define_report
from equipoise.types import Layout
from equipoise.updates import count_type

FIRST = (10, 100)  # histories of so many first rounds are told beside that of all rounds
LAST = 10  # and the history of so many last rounds
# Of a histogram over the shares from 0.5 to 1: of 50, 100 or 200 rounds each bin has equally many possible shares, so that
# none is higher for having more of them.
BINS = 25
BYTE = 8  # bits

define_report("rises", "[m, B]", "which entries of the client's update rose (or stood still), eight to a byte")


def pack_bits(bits: Tensor) -> Tensor:
    """Truth values `[n]` as bytes, eight to each; the last one is filled up with False.

    >>> pack_bits(torch.tensor([True, False, True] + 6 * [False])).tolist()
    [5, 0]
    """
    whole = F.pad(bits.to(torch.uint8), (0, -bits.shape[0] % BYTE)).view(-1, BYTE)
    return (whole << torch.arange(BYTE, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The inverse of `pack_bits`: the first `count` bits, as bytes of 0 or 1.

    >>> unpack_bits(torch.tensor([5, 0], dtype=torch.uint8), 3).tolist()
    [1, 0, 1]
    """
    return ((packed[:, None] >> torch.arange(BYTE, dtype=torch.uint8)) & 1).flatten()[:count]


def find_bounds(rounds: int) -> tuple[int, ...]:
    """Between which rounds signs are counted apart, so that every history that is told is a sum of such stretches.

    >>> find_bounds(200), find_bounds(12), find_bounds(4)
    ((0, 10, 100, 190, 200), (0, 2, 10, 12), (0, 4))
    """
    return tuple(sorted({0, *(first for first in FIRST if first < rounds), max(0, rounds - LAST), rounds}))


@dataclass(frozen=True)
class Rises(Report, gives=("rises",)):
    """Reports which entries of the client's update are not negative, for the parameters of these names."""

    names: tuple[str, ...]
    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        before, after = trained.received.params, trained.params
        return {"rises": pack_bits(torch.cat([(after[name] >= before[name]).flatten() for name in self.names]))}


@dataclass(frozen=True)
class SignHistory(Share, needs=("rises",), remembers="how often each entry of its updates rose", by_columns=()):
    """Sends nothing, and counts in how many rounds each entry of a client's updates rose.

    Of each stretch between two bounds, the state holds per client `up N [entries]` and its number of rounds, `seen N`.
    """

    layout: Layout  # of the parameters that are watched
    bounds: tuple[int, ...]  # of rounds: see `find_bounds`
    clients: tuple[int, ...] | None = None  # those whose signs are counted; None: all
    reads_updates = False

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        n, (first, last) = next((n, ends) for n, ends in enumerate(pairwise(self.bounds)) if round.round < ends[1])
        up, seen = state.rows(f"up {n}"), state.rows(f"seen {n}", default=torch.tensor(0))
        size = self.layout.size
        none = torch.zeros(size, dtype=count_type(last - first))
        told = [(i, c) for i, c in enumerate(round.clients) if self.clients is None or c in self.clients]
        counts = [up.get(c, none) + unpack_bits(round.reports["rises"][i], size) for i, c in told]
        rounds = [seen[c] + 1 for _, c in told]
        who = [c for _, c in told]
        return Sent({}, {**state, f"up {n}": up.put(who, counts), f"seen {n}": seen.put(who, rounds)})


def watch_signs(run: Run, names: Sequence[str], clients: Sequence[int] | None) -> tuple[Report | Share, ...]:
    """The parts that count the signs of these parameters in a run, of these clients' updates or (None) of all."""
    layout = Layout.of({name: run.task.initial_params[name] for name in names})
    who = None if clients is None else tuple(clients)
    return Rises(layout.names), SignHistory(layout, find_bounds(run.settings.rounds), who)


def find_history(run: Run) -> SignHistory | None:
    """The part that counts signs in a run; None if none does."""
    return next((part for part in run.onlookers if isinstance(part, SignHistory)), None)


# --------------------------------------------------------------------------- what is told of the counts
def find_windows(bounds: Sequence[int], done: int) -> dict[str, range]:
    """The histories that are told after `done` rounds, by name: over which stretches between the bounds each goes.

    >>> find_windows((0, 10, 100, 190, 200), 200)
    {'10': range(0, 1), '100': range(0, 2), '200': range(0, 4), 'last 10': range(3, 4)}
    """
    ends = list(bounds[1:])
    found = {str(first): range(ends.index(first) + 1) for first in FIRST if first in ends and first < done}
    found[str(done)] = range(len(ends))
    if done == bounds[-1] > LAST:
        found[f"last {LAST}"] = range(ends.index(done - LAST) + 1, len(ends))
    return found


def count_directions(up: Tensor, seen: int) -> Tensor:
    """How many entries had their more frequent sign in which share of the rounds: counts in `BINS` bins over [0.5, 1].

    `up [entries]` are the rounds, of `seen` ones, in which an entry rose. In whole numbers, so that 9 of 10 rounds is
    in the bin that begins at 0.9.

    >>> count_directions(torch.tensor([9, 1, 5, 10]), 10).nonzero().flatten().tolist()
    [0, 20, 24]
    """
    votes = torch.maximum(up.long(), seen - up.long())
    return torch.bincount(((2 * votes - seen) * BINS // seen).clamp(max=BINS - 1), minlength=BINS)


def measure_consistency(
    run: Run, history: SignHistory, names: Sequence[str], clients: Sequence[int] | None
) -> dict[str, list[float]]:
    """Of the updates of these parameters, the shares per bin of `count_directions`, by history as `find_windows` names
    them. Without `clients` all count that took part."""
    slices = zip(history.layout.names, history.layout.slices, strict=True)
    entries = torch.cat([torch.arange(at.start, at.stop) for name, at in slices if name in names])
    state = State(run.server.memory.parts.get(history.key, {}))
    found: dict[str, list[float]] = {}
    for name, stretches in find_windows(history.bounds, len(run.rounds)).items():
        rows = [(state.rows(f"up {n}"), state.rows(f"seen {n}")) for n in stretches]
        who = sorted({c for up, _ in rows for c in up} if clients is None else set(clients))
        total = torch.zeros(BINS, dtype=torch.long)
        for client in who:
            mine = [(up[client][entries].long(), int(seen[client])) for up, seen in rows if client in up]
            if mine:
                total += count_directions(torch.stack([up for up, _ in mine]).sum(0), sum(seen for _, seen in mine))
        if total.sum():
            found[name] = (total / total.sum()).tolist()
    return found
