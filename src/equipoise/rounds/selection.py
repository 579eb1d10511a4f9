"""The beginning of a round, as pure functions: who makes a report as a candidate, and who takes part."""

from __future__ import annotations

from dataclasses import replace

from equipoise.method import Method
from equipoise.rounds.contract import AskedReports, check_candidates, check_result, check_selected
from equipoise.rounds.parts import Parts
from equipoise.types import Memory, Selected, State, Turnout


def find_candidates(method: Method, turnout: Turnout, memory: Memory) -> list[int]:
    """The clients that are asked for reports before anyone is selected, in ascending order; none if all have a place."""
    part = method.select
    if not part.asks or len(turnout.available) <= turnout.places:
        return []
    found = part.find_candidates(turnout, State(memory.parts.get(part.key, {})))
    return check_candidates(part, found, turnout)


def select_clients(method: Method, turnout: Turnout, memory: Memory) -> tuple[Selected, Memory]:
    """Who takes part in the server's current round, in ascending order, and the server's memory after the selection."""
    part = method.select
    if not turnout.available or (part.asks and len(turnout.available) <= turnout.places):
        return Selected(turnout.available), memory
    parts = Parts(memory, turnout.reports)
    asked = replace(turnout, reports=AskedReports(turnout.reports))
    found = check_result(part, part(asked, State(memory.parts.get(part.key, {}))), Selected)
    chosen = check_selected(part, found, turnout)
    if found.state is not None:
        parts.remember(part, found.state)
    return found._replace(clients=chosen), replace(memory, parts=parts.remembered)
