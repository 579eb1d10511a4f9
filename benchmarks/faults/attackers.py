"""Clients that attack, with and without the guard and the robust merge: what honest clients are left with.

There are two settings. In `digits` ten clients have 100 of scikit-learn's handwritten digits each; the first two have
inverted pictures, and are the honest minority. They train a perceptron of 32 units for 15 rounds. `clinics` are those of
the library for 100 rounds; the sideways one is the minority. In both the last clients attack.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from sklearn.datasets import load_digits

from equipoise import Federation, Guard, Protocol, Training
from equipoise.data.sets.clinics import PROTOCOL, SIZES, VALIDATION
from equipoise.data.sets.scanners import deal_scans
from equipoise.engine.checks import DEPLOYMENT_CHECKS, Checks, Expected
from equipoise.engine.desk import Heard, SimulatedDesk
from equipoise.engine.guard import DEPLOYMENT_GUARD, GUARD_BESIDE_ROBUST
from equipoise.engine.loop import proceed
from equipoise.engine.runners import Errand, Runner, open_runner
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation
from equipoise.types import ClientState, EquipoiseError, Replies
from faults.table import Row, format_spread

MINORITY = (0, 1)  # clients of `digits` with inverted pictures
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


@cache
def make_clinics(seed: int) -> Federation:
    """The library's clinics with the sideways one first."""
    sizes = {name: SIZES[name] for name in ("sideways", "upright")}
    return deal_scans("clinics", sizes, VALIDATION, replace(PROTOCOL, rounds=100), seed)


@dataclass(frozen=True)
class Setting:
    """A federation, the five papers' methods and FedAvg with their parameters there, and how many clients attack."""

    make: Callable[[int], Federation]
    methods: Mapping[str, str]
    attackers: tuple[int, ...]


SETTINGS = {
    "digits": Setting(  # the methods' defaults, unless these are for other sizes of federation
        make_digits,
        {
            "fedavg": "fedavg",
            "fedequilibria": "fedequilibria",
            "eagle": "eagle(lstar_epochs=20)",
            "f2dc": "f2dc(hidden=16, tau=1.0, lam1=0.1)",
            "fedheal": "fedheal",
            "fedfe": "fedfe(q=0.1)",
        },
        (1, 3),
    ),
    "clinics": Setting(  # as in `make demo`
        make_clinics,
        {
            "fedavg": "fedavg",
            "fedequilibria": "fedequilibria(t=0.9, fim_scale='mean')",
            "eagle": "eagle(lam=0.7, lstar='best_val')",
            "f2dc": "f2dc(hidden=16, tau=1.0, lam1=0.1)",
            "fedheal": "fedheal(tau=0.5)",
            "fedfe": "fedfe(q=0.1)",
        },
        (1, 2),
    ),
}


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
    setting: str = "digits",
) -> Outcome:
    """Train with the last clients attacking, under the checks of a deployment."""
    data = SETTINGS[setting].make(seed)
    bad = range(len(data) - attackers, len(data)) if attack else range(0)
    text = SETTINGS[setting].methods[method] + (" + robust" if robust else "")
    settings = Settings.of(
        text,
        data,
        seed=seed,
        guard=guard,
        runner="vectorised",
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
    if not honest:  # every round was refused
        return Outcome(0.0, 0.0, 1.0)
    shares = [0.0]
    for record in found.rounds:
        weights = {c: abs(w) for c, w in zip(record.clients, record.weights, strict=True)}
        shares.append(sum(w for c, w in weights.items() if c in bad) / max(sum(weights.values()), 1e-12))
    return Outcome(sum(honest) / len(honest), min(honest), max(shares))


DEFENCES: dict[str, tuple[Guard | None, bool]] = {
    "no defence": (None, False),
    "guard": (DEPLOYMENT_GUARD, False),
    "guard + robust": (GUARD_BESIDE_ROBUST, True),
}


def _play(setting: str, job: tuple[str, str, str, int, int]) -> Outcome:
    """One run, in a process of its own: the method, the defence, the attack, how many attack, and the seed."""
    torch.set_num_threads(1)
    method, defence, kind, attackers, seed = job
    guard, robust = DEFENCES[defence]
    return attack_run(
        method, ATTACKS.get(kind), seed=seed, attackers=attackers, guard=guard, robust=robust, setting=setting
    )


def attack_methods(
    seeds: Sequence[int] = range(5), setting: str = "digits", defences: Sequence[str] = tuple(DEFENCES), cores: int = 2
) -> list[Row]:
    """A row per method and defence.

    In brackets stands the mean over honest clients in percent of what they have when nobody attacks and nobody defends.
    """
    found = SETTINGS[setting]
    kinds = [("nobody", 0), *((kind, attackers) for attackers in found.attackers for kind in ATTACKS)]
    jobs = [
        (method, defence, kind, attackers, seed)
        for method in found.methods
        for defence in DEFENCES
        for kind, attackers in kinds
        if "Fisher" not in kind or method == "fedequilibria"
        if defence in defences or (defence == "no defence" and kind == "nobody")
        for seed in seeds
    ]
    with ProcessPoolExecutor(cores) as pool:
        outcomes = dict(zip(jobs, pool.map(partial(_play, setting), jobs), strict=True))

    def average(method: str, defence: str, kind: str, attackers: int) -> float:
        return statistics.fmean(outcomes[method, defence, kind, attackers, seed].mean for seed in seeds)

    rows = []
    for method in found.methods:
        usual = average(method, "no defence", "nobody", 0)
        for defence in DEFENCES:
            if (method, defence, "nobody", 0, seeds[0]) not in outcomes:
                continue
            worst = [outcomes[method, defence, "nobody", 0, seed].worst for seed in seeds]
            parts = [
                f"nobody attacks {average(method, defence, 'nobody', 0):.1f} %, worst client {format_spread(worst, 1)} %"
            ]
            for kind, attackers in kinds[1:]:
                if (method, defence, kind, attackers, seeds[0]) in outcomes:
                    mean = average(method, defence, kind, attackers)
                    parts.append(f"{attackers} {kind} {mean:.1f} ({100 * mean / usual:.0f} %)")
            rows.append(Row(f"attack, {setting}, {method}, {defence}", len(seeds), "; ".join(parts)))
    return rows
