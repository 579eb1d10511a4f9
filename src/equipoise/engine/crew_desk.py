"""The desk of a run over several processes: each has a share of the clients' states, of the server's memory, and of the
clients that are scored; one of them writes."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from equipoise.columns import Columns
from equipoise.engine.checkpoints import Snapshot, hash_model
from equipoise.engine.desk import SimulatedDesk
from equipoise.engine.ranks import Ranks
from equipoise.engine.result import Rejection, Run
from equipoise.engine.runners.dealing import deal
from equipoise.engine.runners.distributed import Crew
from equipoise.engine.states import ClientStates, Elsewhere, is_kept
from equipoise.errors import EquipoiseError
from equipoise.rounds.evaluation import Keepers, Score, evaluate, evaluate_unseen, scores_own_models
from equipoise.rounds.server import make_whole
from equipoise.types import ClientState, Memory, PerClient, Remembered, Server, Tensors

Found = TypeVar("Found")


class CrewDesk(SimulatedDesk):
    """The desk at which the processes of a run sit together. All call the same methods in the same order."""

    def __init__(self, run: Run, compute: Crew) -> None:
        super().__init__(run, compute)
        self.ranks, self.columns = compute.ranks, compute.columns
        self.leads, self.is_alone = self.ranks.leads, False
        # What each part remembers by columns, by the key of the part.
        self.split = {part.key: set(part.by_columns or ()) for part in compute.method.parts}
        _refuse_other_runs(self.ranks, run)

    # ------------------------------------------------------------------ who writes
    def lead(self, work: Callable[[], Found]) -> Found | None:
        """Do some work at the leading process: what it gives there, None elsewhere. If it fails, it is an error everywhere."""
        found, why = None, ""
        if self.leads:
            try:
                found = work()
            except EquipoiseError as error:
                why = str(error)
        wrong = self.ranks.tell(why)
        if wrong:
            raise EquipoiseError(wrong)
        return found

    # ------------------------------------------------------------------ what is remembered
    def bring_together(
        self, server: Server, states: Mapping[int, ClientState]
    ) -> tuple[Server, Mapping[int, ClientState]]:
        """The whole memory of the server, and all clients' states, at the leading process; the others keep theirs."""
        parts = self._change_memory(server.memory.parts, lambda value: make_whole(value, self.columns))
        whole = replace(server, memory=replace(server.memory, parts=parts))
        everyone = ClientStates()
        for client in states:
            state = states[client]
            if self.leads:
                everyone[client] = self.ranks.receive(state.rank) if isinstance(state, Elsewhere) else state
            elif state and not isinstance(state, Elsewhere):
                self.ranks.send(state, 0)
        return (whole, everyone) if self.leads else (server, states)

    def deal_out(self, start: Snapshot) -> Snapshot:
        """The leading process's snapshot, with this process's columns of the server's memory and its share of the
        states."""
        told = self.ranks.tell(replace(start, states={}))
        if not told.records:
            return start  # nothing was done before
        memory = told.server.memory
        parts = self._change_memory(memory.parts, lambda value: _cut(value, self.columns))
        server = replace(told.server, memory=Memory(memory.round, parts, memory.shared))
        states = ClientStates()
        known = self.ranks.tell([(c, is_kept(start.states[c])) for c in start.states])
        for number, (client, is_something) in enumerate(known):
            goal = number % self.ranks.size
            if self.leads and goal and is_something:
                self.ranks.send(start.states[client], goal)
            if goal == self.ranks.rank:
                states[client] = start.states[client] if self.leads else self.ranks.receive(0) if is_something else {}
            else:
                states[client] = Elsewhere(goal) if is_something else {}
        return replace(told, server=server, states=states)

    def _change_memory(
        self, parts: Mapping[str, Remembered], change: Callable[[Tensor | PerClient], Tensor | PerClient]
    ) -> dict[str, Remembered]:
        """The memory in which all that is kept by columns was changed, in one order at all processes."""
        return {
            key: {
                name: change(value) if name in self.split.get(key, ()) else value
                for name, value in sorted(state.items())
            }
            for key, state in sorted(parts.items())
        }

    # ------------------------------------------------------------------ scores
    def score(
        self, server: Server, kept: Mapping[int, ClientState], states: Mapping[int, ClientState]
    ) -> tuple[Sequence[Score], list[Rejection]]:
        """Score each client at one of the processes, and tell all of them."""
        run = self.run
        current = ChainMap(dict(kept), states)  # type: ignore[arg-type]  # it is only read
        keepers = _Crew(self.ranks, current)
        mine = self._deal_scoring(current)[self.ranks.rank]
        found = evaluate(
            run.method, run.task, server, current, run.federation, self.splits, clients=mine, keepers=keepers
        )
        data = run.federation
        if data.unseen:
            some = data.unseen if self.leads else ()
            found += evaluate_unseen(run.method, run.task, server, current, data, some, keepers)
        return _put_in_order(self.ranks.gather(found), {data.clients[k].name: k for k in run.settings.scored}), []

    def _deal_scoring(self, states: Mapping[int, ClientState]) -> list[list[int]]:
        """Which process scores which clients: the one that keeps a client's own model; otherwise clients that share a
        test set stay together, because it is scored once."""
        clients, count, scored = self.run.federation.clients, self.ranks.size, self.run.settings.scored
        if scores_own_models(self.run.method, self.run.task):
            keeper = _Crew(self.ranks, states)
            return [[k for k in scored if keeper.find(k) == rank] for rank in range(count)]
        mates: dict[int, list[int]] = {}
        tests = {k: clients[k].test for k in scored}
        for k, test in tests.items():
            mates.setdefault(id(test) if len(test) else -1 - k, []).append(k)
        groups = list(mates.values())
        trained = self.run.federation.count("train") if "train" in self.splits else None
        costs = {
            i: len(tests[group[0]]) + (0 if trained is None else float(trained[group].sum()))
            for i, group in enumerate(groups)
        }
        shares = deal(range(len(groups)), costs, count)
        return [sorted(k for i in share for k in groups[i]) for share in shares]


class _Crew(Keepers):
    """Who keeps which client's state; one that has none is anybody's."""

    def __init__(self, ranks: Ranks, states: Mapping[int, ClientState]) -> None:
        self.ranks, self.states = ranks, states

    def find(self, client: int) -> int:
        """The process that keeps the client's state."""
        state = self.states.get(client, {})
        if isinstance(state, Elsewhere):
            return state.rank
        return self.ranks.rank if state else client % self.ranks.size

    def keeps(self, client: int) -> bool:
        """Whether this process keeps it."""
        return self.find(client) == self.ranks.rank

    def add_up(self, tensors: Tensors) -> Tensors:
        """Sums over all processes, in the order of their ranks; of integers the largest."""
        found = {}
        for name, value in sorted(tensors.items()):  # in one order at all processes
            if value.is_floating_point():
                found[name] = self.ranks.add_up(value.cpu()).to(value.device)
            else:
                found[name] = max(self.ranks.gather(value.cpu()), key=lambda one: int(one.sum())).to(value.device)
        return found


def _cut(value: Tensor | PerClient, columns: Columns) -> Tensor | PerClient:
    """This process's columns, in memory of their own: the whole need not stay."""
    if isinstance(value, PerClient):
        return value.change(lambda row: columns.cut(row).clone())
    return columns.cut(value).clone()


def _put_in_order(each: Sequence[Sequence[Score]], place: Mapping[str, int]) -> list[Score]:
    """The scores of all processes in the order in which one process would have found them."""
    scores = [score for some in each for score in some]
    blocks: dict[tuple[str, str], int] = {}
    for some in each:  # a process that scored nobody in a split tells nothing of its order
        for score in some:
            blocks.setdefault((score.split, score.metric.partition(" of the ")[2]), len(blocks))
    splits = {split: i for i, split in enumerate(dict.fromkeys(split for split, _ in blocks))}

    def find_place(score: Score) -> tuple[int, int, int]:
        block = (score.split, score.metric.partition(" of the ")[2])
        return splits[score.split], blocks[block], place.get(score.client, sys.maxsize)

    return sorted(scores, key=find_place)


def _refuse_other_runs(ranks: Ranks, run: Run) -> None:
    """Refuse processes that are about to do different runs: other options, other data, or another version."""
    found = ranks.gather((run.settings.digest, hash_model(run.server)))
    others = [rank for rank, facts in enumerate(found) if facts != found[0]]
    if others:
        what = "settings or data" if any(facts[0] != found[0][0] for facts in found) else "first model"
        raise EquipoiseError(
            f"Process {others[0]} of {ranks.size} has other {what} than process 0: give all of them the same command, the "
            "same data and the same versions."
        )
