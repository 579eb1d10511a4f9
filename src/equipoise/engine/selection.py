"""The beginning of a round: candidates are asked, if the method's selection wants that, and it is decided who takes
part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.engine.checks import Refusal
from equipoise.engine.desk import Desk
from equipoise.engine.judge import Judge
from equipoise.engine.result import Selection
from equipoise.rounds.selection import find_candidates, select_clients
from equipoise.types import ClientState, Selected, Server, Turnout

LISTED = 1000  # clients of which a record tells why they were not asked, each by itself; of more it tells how many


@dataclass(frozen=True, eq=False)
class Chosen:
    """Who takes part in a round, and what came before it was known."""

    server: Server  # with what the selection remembers
    clients: tuple[int, ...]  # that take part, in ascending order
    selection: Selection  # for the records
    started: Mapping[int, ClientState]  # first states of candidates that were new
    refused: tuple[Refusal, ...] = ()  # candidates whose answers did not count, and why
    notes: tuple[str, ...] = ()  # what a reader of the results should know


def choose_clients(
    judge: Judge,
    desk: Desk,
    server: Server,
    states: Mapping[int, ClientState],
    present: Sequence[int],
    places: int,
    seed: int,
) -> Chosen:
    """Choose at most `places` of the clients that are present. A candidate whose answer does not count is left out."""
    method, setting = judge.method, judge.setting
    turnout = Turnout(present, places, judge.samples, server.memory.round, setting)
    started: Mapping[int, ClientState] = {}
    refused: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    candidates = find_candidates(method, turnout, server.memory)
    if candidates:
        new = [c for c in candidates if c not in states]
        started = judge.ask(desk, server, {}, new, seed, "start").kept if new else {}
        known = {c: states[c] for c in candidates if c in states} | dict(started)
        heard = judge.ask(desk, server, known, candidates, seed, "select")
        refused = tuple(heard.refused)
        out = set(candidates) - set(heard.replies.clients if heard.replies else ())
        # If nobody can be judged, nobody takes part.
        turnout = replace(turnout, available=[c for c in present if c not in out] if heard.replies else ())
        if heard.replies is not None:
            server, replies, notes = judge.believe(server, heard.replies)
            turnout = replace(turnout, candidates=replies.clients, reports=replies.reports)
    selected, memory = select_clients(method, turnout, server.memory)
    clients = tuple(selected.clients)
    selection = _describe(selected, clients, tuple(candidates), turnout)
    return Chosen(replace(server, memory=memory), clients, selection, started, refused, notes)


def _describe(selected: Selected, clients: tuple[int, ...], candidates: tuple[int, ...], turnout: Turnout) -> Selection:
    """What the records tell of a selection."""
    passed = {c: why for c, why in selected.why.items() if c not in clients}
    others = selected.others if len(clients) + len(passed) < len(turnout.available) else ""
    if len(passed) > LISTED:
        counts = Counter(passed.values()).most_common(3)
        others = "; ".join([*(f"{why} ({count} clients)" for why, count in counts), *([others] if others else [])])
        passed = {}
    shown = {*clients, *passed, *candidates}
    values = {c: value for c, value in selected.values.items() if c in shown and math.isfinite(value)}
    return Selection(clients, candidates, passed, others, values)
