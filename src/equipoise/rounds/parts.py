"""The states of a method's server parts during a round."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import Tensor

from equipoise.roles import Part
from equipoise.rounds.contract import check_needs, check_remembered
from equipoise.store import Store
from equipoise.types import Memory, PerClient, Remembered, Reports, State

LIMIT = 2 << 30  # bytes of one part's rows per client in memory


@functools.cache
def _open_store() -> Store:
    """The store of this process: all rows that it puts on disk are in one file."""
    return Store()


class Parts:
    """The states of a method's parts during a round: each part is given its own, and what it returns is checked."""

    def __init__(self, memory: Memory, reports: Reports, lent: Sequence[Tensor] = ()) -> None:
        self.states = dict(memory.parts)
        self.reports = reports
        self.lent = {tensor.untyped_storage().data_ptr() for tensor in lent}

    def state_of(self, part: Part) -> State:
        """The state of a part, which is called next. It is an error if a report that it needs is missing."""
        check_needs(part, self.reports)
        return State(self.states.get(part.key, {}))

    def remember(self, part: Part, state: Remembered) -> None:
        """Keep a part's next state. It is an error if a value is no tensor, or has another shape than before."""
        before = self.states.get(part.key, {})
        for name, value in state.items():
            check_remembered(part, name, value, before.get(name))
        self.states[part.key] = {name: self._shelve(self.own_any(value)) for name, value in state.items()}

    def _shelve(self, value: Tensor | PerClient) -> Tensor | PerClient:
        """What is remembered of clients goes to disk beyond a limit."""
        return value.shelve(LIMIT, _open_store) if isinstance(value, PerClient) else value

    def own_any(self, value: Tensor | PerClient) -> Tensor | PerClient:
        """The value itself, or a copy of those of its tensors that lie in lent memory."""
        if not self.lent or not isinstance(value, PerClient):
            return value if isinstance(value, PerClient) else self.own(value)
        return value.change_held(self.own)

    def own(self, value: Tensor) -> Tensor:
        """The tensor itself, or a copy if it lies in lent memory."""
        return value.clone() if value.untyped_storage().data_ptr() in self.lent else value

    @property
    def remembered(self) -> dict[str, Remembered]:
        """The states of all parts that remember something, by their keys."""
        return {key: state for key, state in self.states.items() if state}
