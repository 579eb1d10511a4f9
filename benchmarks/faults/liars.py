"""False reports of clients that want more weight, with and without the guard; and what the guard costs honest ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from equipoise import Guard
from equipoise.engine.desk import SimulatedDesk
from equipoise.engine.guard import DEPLOYMENT_GUARD, cap, clip_to_cohort
from equipoise.engine.loop import proceed
from equipoise.engine.result import RoundRecord
from equipoise.engine.runners import Errand, Runner, count_cores, open_runner
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation
from equipoise.types import ClientState, PerClient, Replies, Server
from faults.scene import make_federation
from faults.table import Row, format_spread

CLIENTS, ROUNDS = 10, 40
# The first client's classes lie elsewhere, and it is the first to lie: who trusts it harms the others.
HARD = 0

Shares = dict[int, float]  # of the weights of one round, by client


class Lie:
    """A false report: some clients say another number than the true one, here a multiple that may change by round."""

    def __init__(self, factor: Callable[[int], float], liars: Sequence[int] = (HARD,), report: str = "loss") -> None:
        self.factor, self.liars, self.report = factor, liars, report

    def __call__(self, compute: Runner) -> Runner:
        """The runner with liars among its clients."""

        def compute_and_lie(errand: Errand) -> tuple[Replies, dict[int, ClientState]]:
            replies, kept = compute(errand)
            if self.report in replies.reports:
                said = replies.reports[self.report].clone()
                lying = [client in self.liars for client in replies.clients]
                said[lying] = self.twist(said[lying], errand.broadcast.round)
                replies = replace(replies, reports={**replies.reports, self.report: said})
            return replies, kept

        return compute_and_lie

    def twist(self, truth: torch.Tensor, round: int) -> torch.Tensor:
        """What liars say instead of the truth."""
        return truth.abs() * self.factor(round)


class PlusFive(Lie):
    """A client that says its own optimum is lower by five than it is, so that its gap is larger."""

    def __init__(self) -> None:
        super().__init__(lambda _: 1.0, report="gap")

    def twist(self, truth: torch.Tensor, round: int) -> torch.Tensor:
        return truth + 5.0


def run_with_lie(
    method: str, lie: Lie | None, guard: Guard | None, *, rounds: int = ROUNDS, seed: int = 0
) -> tuple[list[Shares], dict[str, float]]:
    """Shares of the weights in every round, and the clients' final accuracies."""
    data = make_federation(CLIENTS, seed=seed, hard=HARD)
    begun = prepare_simulation(Settings.of(method, data, rounds=rounds, guard=guard, runner="inline", seed=seed))
    settings, sent = begun.settings, []

    def note_sent_weights(_: RoundRecord, server: Server) -> None:
        sent.append(server.memory.shared.get("weight"))

    with open_runner(begun.runner, settings.method, begun.task, settings.cohort, count_cores(), sums=False) as compute:
        desk = SimulatedDesk(begun, compute if lie is None else lie(compute))
        found = proceed(begun, desk, on_round=note_sent_weights)
    shares = [_divide(dict(zip(record.clients, record.weights, strict=True))) for record in found.rounds]
    # EAGLE's clients put the weights on their losses themselves: there the server sends them.
    shares += [_divide({c: float(w) for c, w in weights.items()}) for weights in sent if weights is not None]
    return shares, found.values()


def _divide(weights: dict[int, float]) -> Shares:
    """Each client's part of the absolute sum."""
    whole = sum(map(abs, weights.values()))
    return {client: abs(weight) / whole for client, weight in weights.items()}


def find_largest_share(shares: Sequence[Shares], clients: Sequence[int]) -> float:
    """The most that these clients had together in any round."""
    return max(sum(one.get(client, 0.0) for client in clients) for one in shares)


def average_honest(values: dict[str, float], liars: Sequence[int]) -> float:
    """The mean accuracy of those that do not lie, in percent."""
    names = {f"c{client}" for client in liars}
    honest = [value for name, value in values.items() if name not in names]
    return 100 * sum(honest) / len(honest)


def lie_in_runs(seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    """What lying gains, with and without the guard: means over seeds, and ranges."""
    rows = _lie_to_qffl(seeds)
    for method in ("afl(gamma=0.1)", "term(t=1.0)", "fedfe(q=5)", "eagle(apply='server', lam=2.0, lstar_epochs=5)"):
        report = "gap" if "eagle" in method else "loss"
        figure = _compare_largest(method, Lie(lambda _: 100.0, report=report), seeds, "largest share")
        rows.append(Row(f"liar, {method}: 100 times its {report}", len(seeds), figure))
    for name, lie in (
        ("a high loss (gap times 100)", Lie(lambda _: 100.0, report="gap")),
        ("a low own optimum (gap plus 5)", PlusFive()),
    ):
        method = "eagle(lam=2.0, lstar_epochs=5)"
        figure = _compare_largest(method, lie, seeds, "largest share of EAGLE's weights")
        rows.append(Row(f"liar, eagle(lam=2): {name}", len(seeds), figure))
    return rows


def _compare_largest(method: str, lie: Lie, seeds: Sequence[int], what: str) -> str:
    free, guarded = (
        format_spread([find_largest_share(run_with_lie(method, lie, guard, seed=seed)[0], [HARD]) for seed in seeds])
        for guard in (None, DEPLOYMENT_GUARD)
    )
    return f"{what} {free} unguarded, {guarded} guarded"


def _lie_to_qffl(seeds: Sequence[int]) -> list[Row]:
    """Under q = 5 weights follow losses most steeply: there also what lying does to the honest clients' accuracy."""
    method, guards = "qffl(q=5)", (None, DEPLOYMENT_GUARD)
    honest = {guard: [run_with_lie(method, None, guard, seed=seed)[1] for seed in seeds] for guard in guards}
    rows = []
    for name, lie in (
        ("one of ten reports 100 times its loss", Lie(lambda _: 100.0)),
        ("its report grows 5 % per round", Lie(lambda round: 1.05**round)),
        ("two of ten report 100 times theirs", Lie(lambda _: 100.0, (0, 1))),
    ):
        who = lie.liars
        found = {guard: [run_with_lie(method, lie, guard, seed=seed) for seed in seeds] for guard in guards}
        share = {g: format_spread([find_largest_share(shares, who) for shares, _ in runs]) for g, runs in found.items()}
        mean = {g: [average_honest(values, who) for _, values in runs] for g, runs in found.items()}
        truth = {g: [average_honest(values, who) for values in runs] for g, runs in honest.items()}
        free, guarded = (format_spread(mean[guard], 1) for guard in guards)
        true_free, true_guarded = (format_spread(truth[guard], 1) for guard in guards)
        lost = [before - after for before, after in zip(truth[None], mean[DEPLOYMENT_GUARD], strict=True)]
        figure = (
            f"largest share {share[None]} unguarded, {share[DEPLOYMENT_GUARD]} guarded; honest clients {free} % "
            f"unguarded, {guarded} % guarded; when nobody lies {true_free} % and {true_guarded} %; points that honest "
            f"clients lose to the guarded liar: {format_spread(lost, 1)}"
        )
        rows.append(Row(f"liar, {method}: {name}", len(seeds), figure))
    return rows


# --------------------------------------------------------------------------- the price of the guard
def compute_guard_cost(q: float, ratio: float) -> tuple[float, float]:
    """The share of a client with `ratio` times the others' loss under q-weights, without and with the guard."""
    loss = torch.ones(CLIENTS, dtype=torch.float64)
    loss[0] = ratio
    believed = clip_to_cohort(loss, range(CLIENTS), PerClient(), DEPLOYMENT_GUARD)
    free = loss**q / (loss**q).sum()
    limits = torch.full_like(free, DEPLOYMENT_GUARD.share / CLIENTS)
    return float(free[0]), float(cap(believed**q / (believed**q).sum(), limits)[0])


def guard_honest_clients() -> list[Row]:
    """What an honest client with a high loss pays for the guard."""
    rows = []
    for q in (1.0, 2.0, 5.0):
        for ratio in (1.5, 2.5, 5.0):
            free, kept = compute_guard_cost(q, ratio)
            figure = f"share {free:.3f} unguarded, {kept:.3f} guarded: it keeps {100 * kept / free:.0f} %"
            rows.append(Row(f"honest client with {ratio:g} times the others' loss, q = {q:g}", 1, figure))
    return rows
