"""How long planned runs will take, from a few measured steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from equipoise.data import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.simulation import prepare_simulation, simulate
from equipoise.study.reproduce.plan import Plan, Planned

CLIENTS, SAMPLES = 2, 16  # of the small federation on which steps are measured
AFFORDABLE = 100.0  # seconds of a round, by small steps, up to which a true round is measured: it will be much shorter


def estimate_all(plan: Plan, runs: Sequence[Planned]) -> dict[str, float]:
    """The seconds of one run of each kind, if it has the machine to itself. Methods of the same parts are measured once."""
    measured: dict[tuple[str, ...], float] = {}
    found: dict[str, float] = {}
    for planned in runs:
        parts = (planned.data, *(type(part).__name__ for part in planned.settings.method.parts))
        if parts not in measured:
            measured[parts] = _estimate_seconds(planned.settings)
        found[name_kind(planned)] = measured[parts]
    return found


def name_kind(planned: Planned) -> str:
    """Runs that differ in their seed alone have one name."""
    return f"{planned.data}: {planned.method}" if planned.data else planned.method


def _estimate_seconds(settings: Settings) -> float:
    """The time of one run.

    A round is measured on two clients with a few samples each, once with one and once with two epochs. What an epoch adds
    is the training; the rest (reports, server) grows with the samples, too. If that says that a true round is affordable,
    true rounds are measured instead.
    """
    data = settings.federation
    small = _shrink(data)
    once, twice = (_time_round(_simplify(settings, small, epochs))[0] for epochs in (1, 2))
    per_sample = max(0.0, twice - once) / (CLIENTS * SAMPLES)
    held = data.total_samples * settings.cohort / len(data)
    training = settings.training
    steps = training.epochs * held if training.steps is None else training.steps * (training.batch or held)
    tested = sum(len(test) for test in {id(client.test): client.test for client in data.clients}.values())
    plain = steps * per_sample + max(0.0, 2 * once - twice) * held / (CLIENTS * SAMPLES)
    scoring = tested * per_sample / 3  # a forward pass; a step is one and its way back
    if plain + scoring < AFFORDABLE:
        plain, scoring = _time_round(settings)
    return settings.rounds * plain + settings.rounds / settings.eval_every * scoring


def _shrink(data: Federation) -> Federation:
    """The first clients with a few samples each."""
    few = [
        replace(c, train=c.train[:SAMPLES], validation=c.validation[:SAMPLES], test=c.test[:SAMPLES])
        for c in data.clients[:CLIENTS]
    ]
    return replace(data, clients=tuple(few))


def _simplify(settings: Settings, data: Federation, epochs: int) -> Settings:
    """The settings on a small federation, with all its clients and whole epochs of one batch."""
    training = replace(settings.training, steps=None, epochs=epochs, batch=SAMPLES)
    return replace(settings, federation=data, training=training, participation=1.0, runner="inline")


def _time_round(settings: Settings) -> tuple[float, float]:
    """The seconds of a round, and those that scoring adds to it where not every round is scored.

    The first round is left out, because it prepares things. Where every round is scored, the second one counts; otherwise
    the second is without scores and the third with them.
    """
    rounds = 2 if settings.eval_every == 1 else 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = simulate(prepare_simulation(replace(settings, rounds=rounds, eval_every=rounds, until_flat=False)))
    plain, last = done.rounds[1].seconds, done.rounds[-1].seconds
    return plain, max(0.0, last - plain)
