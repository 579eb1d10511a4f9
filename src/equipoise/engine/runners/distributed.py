"""A runner over the processes that `torchrun` started: each trains a share of the clients, and gets all clients' updates
for its share of the parameters.

Every process runs the same loop over rounds. What a client keeps stays at the process that trained it last; the others
know where that is (`Elsewhere`). A client that is dealt to another process takes its state along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.columns import ALL
from equipoise.engine.ranks import Ranks, SplitColumns
from equipoise.engine.runners.dealing import count_samples_of_round, deal
from equipoise.engine.runners.in_process import Errand, run_in_process
from equipoise.engine.states import Elsewhere, is_kept
from equipoise.errors import EquipoiseError
from equipoise.method import Method
from equipoise.task import Task
from equipoise.types import REPORTS, ClientState, Replies, Tensors

UPDATE, TOTAL = "update", "total"  # kinds of rows with an entry per parameter, beside the names of such reports


class _Told(NamedTuple):
    """What a process tells all others of its share of an errand; rows with an entry per parameter travel apart."""

    asked: tuple[str, int, tuple[int, ...]]  # phase, round and clients of the errand, which must be the same everywhere
    replies: Replies | None  # without rows; None: it had no clients
    with_state: frozenset[int]  # its clients that keep something
    types: Mapping[str, torch.dtype]  # of the rows
    error: str = ""  # why it could not do its share


class Crew:
    """The runner. It is opened at every process, and every process calls it with the same errands."""

    def __init__(self, ranks: Ranks, method: Method, task: Task, stacked: int, sums: bool) -> None:
        """Divide the work among the processes `ranks`, up to `stacked` clients at a time in each. With `sums` only the
        weighted sum of the updates is returned."""
        self.ranks, self.method, self.task, self.stacked, self.sums = ranks, method, task, stacked, sums
        self.compute = run_in_process(method, task, stacked, sums)
        size = task.layout.size
        self.columns = SplitColumns(ranks, size) if method.works_by_columns else ALL
        self.pieces = [
            self.columns.piece(rank, size) if isinstance(self.columns, SplitColumns) else slice(0, size)
            for rank in range(ranks.size)
        ]

    def __call__(self, errand: Errand) -> tuple[Replies, dict[int, ClientState]]:
        """Do an errand. The updates in the replies have the columns of this process."""
        shares = self._deal(errand)
        states = self._bring_states(errand, shares)
        share = shares[self.ranks.rank]
        told, rows, kept = self._do_share(errand._replace(clients=share, states=states), errand)
        everyone = self.ranks.gather(told)
        _refuse_trouble(everyone)
        for rank, one in enumerate(everyone):
            if rank != self.ranks.rank:
                kept |= {c: Elsewhere(rank) if c in one.with_state else {} for c in shares[rank]}
        parts = [one.replies for one in everyone if one.replies is not None]
        kinds = dict(next((one.types for one in everyone if one.types), {}))
        replies = replace(Replies.join(parts), columns=self.columns)
        if TOTAL in kinds:
            total = self._add_totals(rows.pop(TOTAL, {}), shares, kinds.pop(TOTAL))
            replies = replace(replies, total=total)
        owner = {client: rank for rank, some in enumerate(shares) for client in some}
        owners = [owner[client] for client in replies.clients]
        place = {client: i for i, client in enumerate(replies.clients)}
        found = {}
        for (
            kind,
            dtype,
        ) in kinds.items():  # one after the other: the rows of one are freed before those of the next come
            mine = {place[client]: row for client, row in rows.pop(kind, {}).items()}
            found[kind] = self.ranks.exchange(mine, owners, self.pieces, dtype)
        updates = found.pop(UPDATE, None)
        return replace(replies, updates=updates, reports={**replies.reports, **found}), kept

    def _deal(self, errand: Errand) -> list[list[int]]:
        """Who computes which clients. Reports on a model take little time: for them no state is moved."""
        kept = {c: errand.states.get(c, {}) for c in errand.clients}
        homes = {c: self._find_home(state) for c, state in kept.items() if is_kept(state)}
        costs = {c: count_samples_of_round(self.task, c) for c in errand.clients}
        if errand.phase in ("select", "probe"):
            settled = [[c for c in errand.clients if homes.get(c) == rank] for rank in range(self.ranks.size)]
            free = deal([c for c in errand.clients if c not in homes], costs, self.ranks.size)
            return [sorted(a + b) for a, b in zip(settled, free, strict=True)]
        return deal(errand.clients, costs, self.ranks.size, homes)

    def _find_home(self, state: ClientState) -> int:
        return state.rank if isinstance(state, Elsewhere) else self.ranks.rank

    def _bring_states(self, errand: Errand, shares: Sequence[Sequence[int]]) -> dict[int, ClientState]:
        """The states of this process's clients. Those that are elsewhere are sent from there, in the order of clients."""
        mine: dict[int, ClientState] = {}
        goal = {client: rank for rank, some in enumerate(shares) for client in some}
        for client in sorted(errand.clients):
            state = errand.states.get(client, {})
            rank = goal[client]
            home = self._find_home(state) if is_kept(state) else rank
            if rank == self.ranks.rank:
                mine[client] = state if home == rank else self.ranks.receive(home)
            elif home == self.ranks.rank:
                self.ranks.send(state, rank)
        return mine

    def _do_share(
        self, mine: Errand, whole: Errand
    ) -> tuple[_Told, dict[str, dict[int, Tensor]], dict[int, ClientState]]:
        """Do this process's share: what all are told, the rows that travel apart by kind and client, and what is kept."""
        rows: dict[str, dict[int, Tensor]] = {}
        parts: list[Replies] = []
        kept: dict[int, ClientState] = {}
        error = ""
        total: Tensor | None = None
        try:
            size = len(mine.clients) if self.sums else self.stacked
            for first in range(0, len(mine.clients), max(1, size)):
                some = mine.clients[first : first + size]
                replies, after = self.compute(mine._replace(clients=some))
                parts.append(_take_rows(replies, rows))
                total = replies.total
                kept |= after
        except EquipoiseError as wrong:
            error = str(wrong)
        if total is not None:
            rows[TOTAL] = {self.ranks.rank: total}
        told = _Told(
            (whole.phase, whole.broadcast.round, tuple(whole.clients)),
            Replies.join(parts) if parts and not error else None,
            frozenset(client for client, state in kept.items() if state),
            {kind: next(iter(found.values())).dtype for kind, found in rows.items()},
            error,
        )
        return told, rows, kept

    def _add_totals(self, own: Mapping[int, Tensor], shares: Sequence[Sequence[int]], dtype: torch.dtype) -> Tensor:
        """The sum over all processes that had clients, in the order of their ranks."""
        busy = [rank for rank, share in enumerate(shares) if share]
        rows = {busy.index(rank): total for rank, total in own.items()}
        found = self.ranks.exchange(rows, busy, self.pieces, dtype)
        total = found[0].clone()
        for row in found[1:]:
            total += row
        return total


def _take_rows(replies: Replies, rows: dict[str, dict[int, Tensor]]) -> Replies:
    """Move what has an entry per parameter into `rows`, by kind and client, and return the rest of the replies."""
    stacks: Tensors = {name: value for name, value in replies.reports.items() if REPORTS[name].has_columns}
    if replies.updates is not None:
        stacks[UPDATE] = replies.updates
    for kind, stack in stacks.items():
        rows.setdefault(kind, {}).update(zip(replies.clients, stack, strict=True))
    rest = {name: value for name, value in replies.reports.items() if name not in stacks}
    return replace(replies, reports=rest, updates=None, total=None)


def _refuse_trouble(everyone: Sequence[_Told]) -> None:
    """Raise what went wrong at any process; the same at all of them."""
    for rank, one in enumerate(everyone):
        if one.error:
            raise EquipoiseError(f"Process {rank} of {len(everyone)}: {one.error}")
        if one.asked != everyone[0].asked:
            raise EquipoiseError(
                f"Process {rank} of {len(everyone)} is at {_say(one.asked)}, process 0 at {_say(everyone[0].asked)}. All must "
                "compute the same: use the same versions and the same kind of processor at all of them."
            )


def _say(asked: Any) -> str:
    phase, round, clients = asked
    return f"`{phase}` of round {round + 1} with clients {list(clients)[:8]}"
