"""Where errands go out and answers come in. What differs between a simulation and real sites is behind this door."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from equipoise.data.federation import Split
from equipoise.engine.checks import Checks, Expected, Refusal, check_numbers, is_sum_finite
from equipoise.engine.result import Rejection, RoundRecord, Run
from equipoise.engine.runners import Errand, Runner
from equipoise.rounds.evaluation import Score, evaluate
from equipoise.types import ClientState, Replies, Server


class Heard(NamedTuple):
    """What came back on an errand, and counts."""

    replies: Replies | None
    kept: Mapping[int, ClientState] = {}  # what the clients keep, where that is here
    refused: Sequence[Refusal] = ()


class Desk(Protocol):
    """Who answers an errand, and who is scored."""

    def open(self, name: str, records: Sequence[RoundRecord]) -> str:
        """Begin, or go on after these rounds; the run's name, by which clients know their states. Empty: give it one."""
        ...

    def find_present(self, wanted: Sequence[int]) -> tuple[Sequence[int], list[Rejection]]:
        """Which of these clients can be asked now, and why the others cannot."""
        ...

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        """The answers that count. A start that happens at the clients themselves gives none."""
        ...

    def score(
        self, server: Server, kept: Mapping[int, ClientState], states: Mapping[int, ClientState]
    ) -> tuple[Sequence[Score], list[Rejection]]:
        """The scores of every client that has any, and who should have sent some. `kept` is newer than `states`."""
        ...

    def count(self, clients: Sequence[int], round: int) -> None:
        """The answers of these clients counted in this round."""
        ...


class SimulatedDesk:
    """All clients are here: a runner computes what they answer, and they are always present."""

    def __init__(self, run: Run, compute: Runner) -> None:
        self.run, self.compute = run, compute
        validated = any(len(client.validation) for client in run.federation.clients)
        self.splits: tuple[Split, ...] = ("test", "validation") if validated else ("test",)

    def open(self, name: str, records: Sequence[RoundRecord]) -> str:
        return name

    def find_present(self, wanted: Sequence[int]) -> tuple[Sequence[int], list[Rejection]]:
        return wanted, []

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        """Of a sum that is not finite the culprits are found by asking one by one; then the others are asked again, so that the
        sum is the one that it would have been without them."""
        replies, kept = self.compute(errand)
        if errand.phase == "start":
            return Heard(None, kept)
        good, refused = check_numbers(replies, expected, checks)
        if replies.total is None:
            return Heard(good, kept, refused)
        bad = {refusal.client for refusal in refused}
        if not is_sum_finite(replies):
            for client in errand.clients:
                if client not in bad and not is_sum_finite(self.compute(errand._replace(clients=[client]))[0]):
                    refused.append(Refusal(client, "the update is not finite", is_not_finite=True))
                    bad.add(client)
        if not bad:
            return Heard(replies, kept)
        left = [client for client in errand.clients if client not in bad]
        if not left:
            return Heard(None, {}, sorted(refused))
        return Heard(*self.compute(errand._replace(clients=left)), sorted(refused))

    def score(
        self, server: Server, kept: Mapping[int, ClientState], states: Mapping[int, ClientState]
    ) -> tuple[Sequence[Score], list[Rejection]]:
        run = self.run
        current = ChainMap(dict(kept), states)  # type: ignore[arg-type]  # it is only read
        return evaluate(run.method, run.task, server, current, run.federation, self.splits), []

    def count(self, clients: Sequence[int], round: int) -> None:
        pass
