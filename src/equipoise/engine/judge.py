"""Which answers of a run count, and what the server believes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from equipoise.engine.checks import Checks, Expected, count_declared_samples, expect
from equipoise.engine.desk import Desk, Heard
from equipoise.engine.guard import Guard, clip_replies
from equipoise.engine.result import Run
from equipoise.engine.runners import Errand
from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.rounds.server import make_broadcast
from equipoise.task import Task
from equipoise.types import ClientState, Replies, Server, Setting


@dataclass(frozen=True)
class Judge:
    """What decides which answers of a run count, and what the server believes of them."""

    method: Method  # as the rounds play it: see `Run.played_method`
    task: Task
    setting: Setting  # facts that do not change during the run
    checks: Checks
    guard: Guard | None
    samples: Mapping[int, float]  # how many training samples each client has
    rates: Sequence[float] = ()  # the local learning rate of each round, where it follows a schedule

    @classmethod
    def of(cls, run: Run) -> Judge:
        """The judge of a run, with the checks and the guard of its settings."""
        settings, task = run.settings, run.task
        setting = task.setting(settings.rounds, settings.seed)
        checks = settings.checks
        if settings.guard is not None:  # a guard shortens what is long, instead of refusing it
            checks = replace(checks, norm=None)
        rate = task.training.rate
        rates = () if rate.is_constant else rate.tabulate(settings.rounds)  # once: a schedule is read from text
        return cls(run.played_method, task, setting, checks, settings.guard, count_declared_samples(task), rates)

    def find_rate(self, round: int) -> float:
        """The local learning rate of this round, counted from 0."""
        return self.rates[round] if self.rates else self.task.training.lr

    def expect(self, server: Server, clients: Sequence[int], phase: Phase) -> Expected:
        """What these clients are to send in this phase."""
        return expect(self.method, self.task, server, clients, phase, self.samples)

    def believe(self, server: Server, replies: Replies) -> tuple[Server, Replies, tuple[str, ...]]:
        """Let the guard, if there is one, clip what was sent: the server, which remembers losses, the replies, and what was
        clipped."""
        return (server, replies, ()) if self.guard is None else clip_replies(self.guard, server, replies)

    def name_of(self, client: int) -> str:
        """The name of the client with this number."""
        clients = self.task.federation.clients
        return clients[client].name if 0 <= client < len(clients) else f"client {client}"

    def ask(
        self,
        desk: Desk,
        server: Server,
        states: Mapping[int, ClientState],
        clients: Sequence[int],
        seed: int,
        phase: Phase,
    ) -> Heard:
        """Ask these clients for one phase of the server's current round: the answers that count."""
        errand = Errand(
            clients,
            make_broadcast(server, self.setting.rounds or 0, self.find_rate(server.memory.round)),
            states,
            seed,
            phase,
        )
        return desk.ask(errand, self.expect(server, clients, phase), self.checks)
