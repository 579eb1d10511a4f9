"""The desk, which the loop over rounds asks for the clients' answers. A simulation and a federation of real sites
differ in their desk alone."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from equipoise.engine.checkpoints import Snapshot
from equipoise.engine.checks import Checks, Expected, Refusal, check_numbers, is_sum_finite
from equipoise.engine.result import Rejection, RoundRecord, Run
from equipoise.engine.runners import Errand, Runner
from equipoise.rounds.evaluation import SCORED, Score, evaluate, evaluate_unseen
from equipoise.types import ClientState, Replies, Server

Found = TypeVar("Found")


class Heard(NamedTuple):
    """What came back on an errand."""

    replies: Replies | None  # the answers that count; None if none does
    kept: Mapping[int, ClientState] = {}  # what clients keep for later rounds; empty if it stays at the sites
    refused: Sequence[Refusal] = ()  # the answers that do not count, and why


class Desk(Protocol):
    """What the loop over rounds needs to reach the clients: who is there, what they answer, how they score."""

    def open(self, name: str, records: Sequence[RoundRecord]) -> str:
        """Begin a run, or go on after these rounds. Returns the run's name, by which clients know their states; if
        `name` is empty, the desk may choose one."""
        ...

    def find_present(self, wanted: Sequence[int]) -> tuple[Sequence[int], list[Rejection]]:
        """Which of these clients can be asked now, and why the others cannot."""
        ...

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        """Ask clients to do an errand, and return the answers that count. In the phase `start` there may be none."""
        ...

    def score(
        self, server: Server, kept: Mapping[int, ClientState], states: Mapping[int, ClientState]
    ) -> tuple[Sequence[Score], list[Rejection]]:
        """Score the model at the clients: the scores, and the clients that should have sent some but did not.

        `kept` holds the clients' states after this round, `states` those before it.
        """
        ...

    def count(self, clients: Sequence[int], round: int) -> None:
        """Take note that the answers of these clients counted in this round."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process writes what the run leaves behind. In a run over several processes one of them does."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether no other process takes part in this loop."""
        ...

    def lead(self, work: Callable[[], Found]) -> Found | None:
        """Do some work at the process that leads: what it gives there, None elsewhere. If it fails, it is an error
        everywhere."""
        ...

    def bring_together(
        self, server: Server, states: Mapping[int, ClientState]
    ) -> tuple[Server, Mapping[int, ClientState]]:
        """Everything that the processes of the run remember, at the one that leads."""
        ...

    def deal_out(self, start: Snapshot) -> Snapshot:
        """The inverse: what this process is to remember of the snapshot that the leading one gives."""
        ...


class LoneDesk:
    """What a desk is that no other process sits at."""

    leads = True
    is_alone = True

    def lead(self, work: Callable[[], Found]) -> Found | None:
        """Do the work."""
        return work()

    def bring_together(
        self, server: Server, states: Mapping[int, ClientState]
    ) -> tuple[Server, Mapping[int, ClientState]]:
        """All of it is here."""
        return server, states

    def deal_out(self, start: Snapshot) -> Snapshot:
        """All of it stays here."""
        return start


class SimulatedDesk(LoneDesk):
    """The desk of a simulation: a runner computes what the clients answer, and all are always present."""

    def __init__(self, run: Run, compute: Runner) -> None:
        self.run, self.compute = run, compute
        self.splits = SCORED if run.settings.train_scores else tuple(split for split in SCORED if split != "train")

    def open(self, name: str, records: Sequence[RoundRecord]) -> str:
        """Nothing to do: a simulation keeps the name that it has."""
        return name

    def find_present(self, wanted: Sequence[int]) -> tuple[Sequence[int], list[Rejection]]:
        """All of them, always."""
        return wanted, []

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        """Let the runner compute the answers, and check them.

        If a sum of updates is not finite, clients are computed one by one to find those that spoilt it. Then the others
        are computed again, so that the sum is what it would have been without them.
        """
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
        """Evaluate the model at every client: on test data, on validation data if there are any, and on the training
        data unless the settings say otherwise."""
        run = self.run
        current = ChainMap(dict(kept), states)  # type: ignore[arg-type]  # it is only read
        scored = run.settings.scored
        some = None if len(scored) == len(run.federation) else scored
        found = evaluate(run.method, run.task, server, current, run.federation, self.splits, clients=some)
        if some is not None:
            found += evaluate_unseen(run.method, run.task, server, current, run.federation, run.federation.unseen)
        return found, []

    def count(self, clients: Sequence[int], round: int) -> None:
        """Nothing to do: the loop itself keeps the clients' states."""
