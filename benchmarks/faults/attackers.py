"""Clients that attack, with and without the guard and the robust merge: what honest clients are left with.

The setting: ten clients with 100 of scikit-learn's handwritten digits each; the first two have inverted pictures, and are
the honest minority; the last ones attack. A perceptron of 32 units, 15 rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from sklearn.datasets import load_digits

from equipoise import Federation, Guard, Protocol, Training
from equipoise.engine.checks import DEPLOYMENT_CHECKS, Checks, Expected
from equipoise.engine.desk import Heard, SimulatedDesk
from equipoise.engine.guard import DEPLOYMENT_GUARD
from equipoise.engine.loop import proceed
from equipoise.engine.runners import Errand, Runner, open_runner
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation
from equipoise.types import ClientState, EquipoiseError, Replies
from faults.table import Row, format_spread

METHODS = {  # the five papers' methods and FedAvg, at the defaults unless these are for other sizes of federation
    "fedavg": "fedavg",
    "fedequilibria": "fedequilibria",
    "eagle": "eagle(lstar_epochs=20)",
    "f2dc": "f2dc(hidden=16, tau=1.0, lam1=0.1)",
    "fedheal": "fedheal",
    "fedfe": "fedfe(q=0.1)",
}
MINORITY = (0, 1)  # clients with inverted pictures
ROUNDS = 15


@cache
def make_digits(seed: int, clients: int = 10) -> Federation:
    """The federation of this module's first lines."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    rest = order[100 * clients :]

    def take(client: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pictures = images[places]
        return 1 - pictures if client in MINORITY else pictures, labels[places]

    train = {f"c{k}": take(k, order[100 * k : 100 * (k + 1)]) for k in range(clients)}
    test = {f"c{k}": take(k, rest) for k in range(clients)}
    training = Training(epochs=2, batch=20, lr=0.1, momentum=0.9)
    protocol = Protocol(rounds=ROUNDS, training=training, model="mlp(hidden=(32,))")
    return Federation.from_tensors(train, test=test, classes=10, name="digits", protocol=protocol)


@dataclass(frozen=True)
class Attack:
    """What attackers send: their updates times a negative factor, and perhaps a false report beside them."""

    update: float = -1.0  # factor on the update
    reports: Mapping[str, float] | None = None  # factors on reports, by name

    def spoil(self, replies: Replies, attackers: Sequence[int]) -> Replies:
        """The replies with those of the attackers changed."""
        bad = torch.tensor([client in attackers for client in replies.clients])
        updates, reports = replies.updates, dict(replies.reports)
        if updates is not None:
            updates = torch.where(bad[:, None], self.update * updates, updates)
        for name, factor in (self.reports or {}).items():
            if name in reports:
                said = reports[name].clone()
                said[bad] = (factor * said[bad].double()).to(said.dtype)
                reports[name] = said
        return replace(replies, updates=updates, reports=reports)


FALSE_LOSS = Attack(reports={"loss": 100.0, "loss_local": 100.0, "gap": 100.0})
ATTACKS = {
    "reversed": Attack(-1.0),
    "reversed, 3 times as long": Attack(-3.0),
    "reversed, 9 times as long": Attack(-9.0),
    "reversed, loss times 100": FALSE_LOSS,
    "reversed, Fisher halved": Attack(reports={"fisher": 0.5}),
    "reversed, samples times 10 million": Attack(reports={"samples": 1e7}),
}


class _AttackedDesk(SimulatedDesk):
    """A desk at which nobody knows beforehand how many samples a client has: it counts what the client says."""

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        return super().ask(errand, replace(expected, samples={}), checks)


@dataclass(frozen=True)
class Outcome:
    """What honest clients are left with."""

    mean: float  # mean accuracy of honest clients, in percent
    worst: float  # that of the worst of them
    share: float  # the largest share of the weights that attackers had together in a round


def attack_run(
    method: str,
    attack: Attack | None,
    *,
    seed: int,
    attackers: int = 1,
    guard: Guard | None = None,
    robust: bool = False,
    federation: Federation | None = None,
) -> Outcome:
    """Train with the last clients attacking, under the checks of a deployment."""
    data = federation or make_digits(seed)
    bad = range(len(data) - attackers, len(data)) if attack else range(0)
    text = f"{METHODS.get(method, method)} + robust" if robust else METHODS.get(method, method)
    settings = Settings.of(
        text,
        data,
        seed=seed,
        guard=guard,
        runner="inline",
        checks=DEPLOYMENT_CHECKS,
        eval_every=10**6,
        train_scores=False,
    )
    begun = prepare_simulation(settings)

    def spoiled(compute: Runner) -> Runner:
        def compute_and_spoil(errand: Errand) -> tuple[Replies, dict[int, ClientState]]:
            replies, kept = compute(errand)
            return (replies if attack is None else attack.spoil(replies, bad)), kept

        return compute_and_spoil

    with open_runner(begun.runner, settings.method, begun.task, settings.cohort, 1, sums=False) as compute:
        try:
            found = proceed(begun, _AttackedDesk(begun, spoiled(compute)))
        except EquipoiseError:  # the model is not finite any more
            return Outcome(0.0, 0.0, 1.0)
    values = found.values()
    honest = [
        100 * values[client.name] for k, client in enumerate(data.clients) if k not in bad and client.name in values
    ]
    shares = [0.0]
    for record in found.rounds:
        weights = {c: abs(w) for c, w in zip(record.clients, record.weights, strict=True)}
        shares.append(sum(w for c, w in weights.items() if c in bad) / max(sum(weights.values()), 1e-12))
    return Outcome(sum(honest) / len(honest), min(honest), max(shares))


def attack_methods(seeds: Sequence[int] = range(5), methods: Sequence[str] = tuple(METHODS)) -> list[Row]:
    """Three rows per method: without defence, with the guard, with the guard and the robust merge.

    In brackets stands the mean over honest clients in percent of what they have when nobody attacks.
    """
    rows = []
    for method in methods:
        usual = sum(attack_run(method, None, seed=seed).mean for seed in seeds) / len(seeds)
        for name, guard, robust in (
            ("no defence", None, False),
            ("guard", DEPLOYMENT_GUARD, False),
            ("guard + robust", DEPLOYMENT_GUARD, True),
        ):
            calm = [attack_run(method, None, seed=seed, guard=guard, robust=robust) for seed in seeds]
            parts = [
                f"nobody attacks {format_spread([one.mean for one in calm], 1)} %, worst client "
                f"{format_spread([one.worst for one in calm], 1)} %"
            ]
            for attackers in (1, 3):
                for kind, attack in ATTACKS.items():
                    if "Fisher" in kind and method != "fedequilibria":
                        continue
                    runs = [
                        attack_run(method, attack, seed=seed, attackers=attackers, guard=guard, robust=robust)
                        for seed in seeds
                    ]
                    mean = sum(one.mean for one in runs) / len(runs)
                    parts.append(f"{attackers} {kind} {mean:.1f} ({100 * mean / usual:.0f} %)")
            rows.append(Row(f"attack, {method}, {name}", len(seeds), "; ".join(parts)))
    return rows
