"""Studies: runs that may be compared, as they have the same data and settings and differ in method and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, join_words
from equipoise.metrics import FORMULAS, UNSEEN, Interval, corrected_variance, over_seeds, paired, std
from equipoise.runs.reading import Recorded
from equipoise.study.report.charts import ALONE, POOLED
from equipoise.study.report.optima import Optima, find_known_optima, find_steered_optima
from equipoise.study.report.view import DEFAULT_VIEW, Vector, View, average_by_domain
from equipoise.study.report.volatility import average_change, measure_weight_changes

EXPLAINED = "explained variance is 1 minus the squared error divided by the variance of all clients' training targets"
LAST = 5  # evaluated rounds at the end of a run, whose mean is told beside the last one
NO_METHODS = ("local_only", "centralised")  # what methods are compared with, and no federated method
BY_ROUND = ("AVG", "STD", "MIN")  # figures that are also told of rounds other than the last


def weigh_by_samples(values: Vector, samples: Vector) -> float:
    """The mean over clients, weighted by their numbers of test samples.

    >>> weigh_by_samples(np.array([0.5, 1.0]), np.array([30.0, 10.0]))
    0.625
    """
    there = ~np.isnan(values)
    return float(np.average(values[there], weights=samples[there])) if samples[there].sum() > 0 else float("nan")


@dataclass(frozen=True)
class Rules:
    """What methods are judged by."""

    reference: str | None = None  # the method that the others are compared with; None: FedAvg
    average: float = 0.01  # the average score may fall by less than this
    client: float = 0.02  # a client may fall by this much, and by more only if the worst client gains at least as much

    def find_reference(self, methods: Iterable[str]) -> str | None:
        """The reference among methods, with or without its parameters; None if it is not there."""
        name = self.reference or "fedavg"
        return next((m for m in methods if m == name or m.startswith(f"{name}(")), None)


DEFAULT_RULES = Rules()


@dataclass(frozen=True, eq=False)
class Study:
    """Finished runs that may be compared, by method and seed. `rules` say what methods are judged by."""

    runs: Mapping[str, Mapping[int, Recorded]]
    notes: Sequence[str] = ()  # which runs and scores are missing, and why
    rules: Rules = DEFAULT_RULES
    view: View = DEFAULT_VIEW  # over what the figures are taken

    # ------------------------------------------------------------------ facts
    @cached_property
    def any(self) -> Recorded:
        """One of the runs, for facts that are the same in all."""
        return next(iter(next(iter(self.runs.values())).values()))

    @property
    def name(self) -> str:
        """The name of the data, and who is held out of training."""
        name = str(self.any.manifest["data"]["name"])
        return f"{name}, unseen: {self.held_out}" if self.any.unseen else name

    @property
    def held_out(self) -> str:
        """Who is held out of training, in words: domains where nobody else is of them, otherwise clients."""
        domains = list(dict.fromkeys(self.any.unseen_domains))
        return join_words(self.any.unseen if set(domains) & set(self.any.domains) else domains)

    @property
    def score(self) -> str:
        """What clients are compared by, in words: the accuracy or, where numbers are predicted, explained variance."""
        return self.any.score_words

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they are shown."""
        return list(self.runs)

    @property
    def reference(self) -> str | None:
        """The method against which the others are judged, as it is named here; None if it has no runs."""
        return self.rules.find_reference(self.runs)

    @property
    def alone(self) -> str | None:
        """Local-only training, as it is named here; None if it has no runs."""
        return next((m for m in self.runs if m.startswith("local_only")), None)

    @property
    def rivals(self) -> list[str]:
        """The methods that are judged: all but the reference, local-only and centralised training."""
        return [m for m in self.runs if m != self.reference and not m.startswith(NO_METHODS)]

    @property
    def named_domains(self) -> list[str]:
        """The domains that clients were given, each once; empty where clients have none."""
        found = (client["domain"] for client in self.any.manifest["data"]["clients"])
        return list(dict.fromkeys(domain for domain in found if domain))

    def shared_seeds(self, *methods: str) -> list[int]:
        """The seeds that all of these methods have."""
        return [seed for seed in self.runs[methods[0]] if all(seed in self.runs[m] for m in methods)]

    def colour(self, method: str) -> int:
        """The number of the method's colour, which is the same in all plots."""
        if method.startswith(NO_METHODS):
            return ALONE if method.startswith("local_only") else POOLED
        return [m for m in self.methods if not m.startswith(NO_METHODS)].index(method)

    # ------------------------------------------------------------------ values
    @cached_property
    def _curves(self) -> dict[tuple[str, int, str, str], tuple[NDArray[np.int64], Vector]]:
        return {}

    def curve(
        self, method: str, seed: int, metric: str | None = None, split: str = "test"
    ) -> tuple[NDArray[np.int64], Vector]:
        """The evaluated rounds, and one value per round and client, [rounds, clients]; by default of the score."""
        key = (method, seed, metric or self.any.score, split)
        if key not in self._curves:
            self._curves[key] = self.runs[method][seed].curve(metric, split)
        return self._curves[key]

    def align(
        self, method: str, metric: str | None = None, split: str = "test"
    ) -> tuple[NDArray[np.int64], list[Vector]]:
        """The rounds after which some seed was evaluated, and the values `[rounds, clients]` of each seed there.

        Runs that end when they are flat have different lengths: one that has ended keeps its last values.
        """
        curves = [self.curve(method, seed, metric, split) for seed in self.runs[method]]
        rounds = np.unique(np.concatenate([there for there, _ in curves]))
        latest = [np.searchsorted(there, rounds, side="right") - 1 for there, _ in curves]
        return rounds, [values[np.maximum(at, 0)] for at, (_, values) in zip(latest, curves, strict=True)]

    def final(self, method: str, metric: str | None = None, split: str = "test") -> dict[int, Vector]:
        """One value per client after the last round, for each seed that has any; or the mean over the view's rounds."""
        curves = {seed: self.curve(method, seed, metric, split)[1] for seed in self.runs[method]}
        return {seed: self.view.average_last(values) for seed, values in curves.items() if len(values)}

    def mean_final(self, method: str, metric: str | None = None) -> Vector:
        """One value per client after the last round, averaged over seeds."""
        found: Vector = np.mean(list(self.final(method, metric).values()), axis=0)
        return found

    def stack(self, *methods: str) -> list[Vector]:
        """The final scores `[seeds, clients]` of each of these methods, for the seeds that all of them have."""
        seeds = self.shared_seeds(*methods)
        return [np.stack([self.final(method)[seed] for seed in seeds]) for method in methods]

    def change(self, method: str, figure: str) -> Interval:
        """How much a figure differs under a method from that under the reference, paired by seed."""
        assert self.reference is not None
        return paired(*(self.per_seed(m, figure) for m in (self.reference, method)))

    def gaps(self, method: str) -> dict[int, Vector]:
        """Each client's loss minus its optimal loss (see `optima`), for the seeds that have both."""
        if self.optima is None or method == self.alone:
            return {}
        own, mine = self.optima.by_seed, self.final(method, "loss", self.optima.split)
        return {seed: mine[seed] - own[seed] for seed in mine if seed in own}

    @cached_property
    def optima(self) -> Optima | None:
        """The clients' optimal losses, by which loss gaps are judged; None if they are not known.

        They are those by which EAGLE steers, if there are runs of it; otherwise what all clients brought, or what they
        reach in local-only training.
        """
        steered = find_steered_optima(self.runs)
        if steered is not None:
            return steered
        known = find_known_optima(self.any)
        if known is not None:
            seeds = {seed for runs in self.runs.values() for seed in runs}
            return Optima("test", dict.fromkeys(seeds, known), "the optimal loss that it brought")
        if self.alone is None:
            return None
        return Optima("test", self.final(self.alone, "loss"), "that of its own model (local_only, same seed)")

    @property
    def gap_words(self) -> str:
        """What a loss gap is in this study, in words."""
        if self.optima is None:
            return "a client's loss minus its optimal loss, which is not known here"
        return f"a client's {self.optima.split} loss minus {self.optima.source}"

    def gains(self, method: str) -> dict[int, Vector]:
        """Each client's test score minus that of local-only training, for the seeds that both have."""
        if self.alone is None or self.alone == method:
            return {}
        own, mine = self.final(self.alone), self.final(method)
        return {seed: mine[seed] - own[seed] for seed in mine if seed in own}

    def own_optima(self, split: str) -> dict[str, float]:
        """The loss that each client reaches alone, averaged over seeds; empty without runs of `local_only`."""
        if self.alone is None:
            return {}
        found = list(self.final(self.alone, "loss", split).values())
        values = np.mean(found, axis=0) if found else np.full(len(self.any.clients), np.nan)
        return {name: float(v) for name, v in zip(self.any.clients, values, strict=True) if not np.isnan(v)}

    # ------------------------------------------------------------------ figures
    def measure(self, name: str, values: Vector) -> float:
        """A figure of one value per client, as the view takes it."""
        return self.view.measure(name, values, self.any.domains)

    def per_seed(self, method: str, name: str, metric: str | None = None) -> dict[int, float]:
        """A figure after the last round, for each seed."""
        return {seed: self.measure(name, values) for seed, values in self.final(method, metric).items()}

    def trace(self, method: str, seed: int, name: str) -> Vector:
        """A figure after each evaluated round."""
        return np.array([self.measure(name, row) for row in self.curve(method, seed)[1]])

    def define(self, name: str) -> str:
        """The definition of a figure, as it is taken in this study."""
        if name == "gap mean":
            return f"loss gap: {self.gap_words}; mean over clients"
        return self.view.word(name, DEFINITIONS[name])

    def figures(self, method: str) -> dict[str, Interval]:
        """Every figure of a method: mean and 95 % interval over seeds. `define` explains each."""
        found = {name: over_seeds(list(self.per_seed(method, name).values())) for name in FORMULAS}
        final, losses = self.final(method), self.final(method, "loss")
        samples = {seed: self.runs[method][seed].samples() for seed in final}
        domains = [list(average_by_domain(v, self.any.domains).values()) for v in final.values()]
        more: dict[str, list[float]] = {
            "AVG over domains": [float(np.mean(v)) for v in domains],
            "STD over domains": [std(v, self.view.ddof) for v in domains],
            "MIN over domains": [min(v) for v in domains],
            "AVG by samples": [weigh_by_samples(v, samples[seed]) for seed, v in final.items()],
            "corrected variance": [
                corrected_variance(v, samples[seed]) if self.any.score == "accuracy" else math.nan
                for seed, v in final.items()
            ],
            "loss": [float(np.nanmean(v)) for v in losses.values()],
            "worst loss": [float(np.nanmax(v)) for v in losses.values()],
            "best loss": [float(np.nanmin(v)) for v in losses.values()],
            "loss variance": [self.view.vary(v) for v in losses.values()],
        }
        gaps, gains = self.gaps(method), self.gains(method)
        more |= {
            "gap mean": [float(np.nanmean(v)) for v in gaps.values()],
            "gap max": [float(np.nanmax(v)) for v in gaps.values()],
            "gap min": [float(np.nanmin(v)) for v in gaps.values()],
            "gap variance": [self.view.vary(v) for v in gaps.values()],
            "gain mean": [float(np.nanmean(v)) for v in gains.values()],
            "gain min": [float(np.nanmin(v)) for v in gains.values()],
            "losers": [float((v < 0).sum()) for v in gains.values()],
            **{
                f"{name}, last five": [float(np.mean(self.trace(method, s, name)[-LAST:])) for s in final]
                for name in BY_ROUND
            },
            **{
                f"{name}, best by validation": [self.measure(name, self.chosen_round(method, s)) for s in final]
                for name in BY_ROUND
            },
            "lowest STD of the curve": [float(self.trace(method, s, "STD").min()) for s in final],
            **{
                f"{name}, volatility": [average_change(self.trace(method, s, name)) for s in final]
                for name in ("AVG", "STD")
            },
            "weight volatility": [measure_weight_changes(self.runs[method][s]) for s in final],
            "seconds per round": [self.seconds(method, s) for s in final],
        }
        unseen = self.final(method, split=UNSEEN).values() if self.any.unseen else ()
        more |= {"AVG unseen": [float(np.mean(v)) for v in unseen], "MIN unseen": [float(np.min(v)) for v in unseen]}
        return found | {name: over_seeds(values) for name, values in more.items()}

    @cached_property
    def table(self) -> dict[str, dict[str, Interval]]:
        """Every figure of every method."""
        return {method: self.figures(method) for method in self.methods}

    def chosen_round(self, method: str, seed: int) -> Vector:
        """Test scores after the round with the best mean validation score; NaN without validation data.

        If several rounds are equally good, it is the earliest.
        """
        rounds, held = self.curve(method, seed, split="validation")
        tested, values = self.curve(method, seed)
        if not len(rounds):
            return np.full(values.shape[1], np.nan)
        best = rounds[int(np.argmax(np.nanmean(held, axis=1)))]
        found: Vector = values[list(tested).index(best)]
        return found

    def seconds(self, method: str, seed: int) -> float:
        """The median time of a round: the first one of a process may take much longer than the others."""
        return float(np.median(self.runs[method][seed].manifest["seconds_per_round"]))

    def cost(self, method: str) -> Mapping[str, int]:
        """What a method costs: the model's parameters and, per client and round, bytes sent and operations."""
        found: Mapping[str, int] = next(iter(self.runs[method].values())).manifest["cost"]
        return found


DEFINITIONS = {name: formula.definition for name, formula in FORMULAS.items()} | {
    "AVG over domains": "mean over domains of the mean over a domain's clients",
    "STD over domains": "standard deviation over domains, ddof 0",
    "MIN over domains": "the worst domain",
    "AVG by samples": "mean over clients, weighted by their test samples",
    "corrected variance": "variance of the accuracy between clients, ddof 1, minus the mean of p(1-p)/(n-1), which finite test "
    "sets add; below 0 means no more than chance",
    "loss": "mean test loss over clients",
    "worst loss": "largest test loss of a client",
    "best loss": "smallest test loss of a client",
    "loss variance": "variance of the test losses over clients, ddof 0",
    "gap mean": "loss gap: a client's loss minus its optimal loss; mean over clients",
    "gap max": "largest loss gap",
    "gap min": "smallest loss gap",
    "gap variance": "variance of the loss gaps over clients, ddof 0",
    "gain mean": "gain: a client's test score minus that of local-only training with the same seed; mean over clients",
    "gain min": "smallest gain, of the client that joining helps least",
    "losers": "clients whose test score is below that of local-only training with the same seed",
    **{f"{name}, last five": f"{name}, mean over the last five evaluated rounds" for name in BY_ROUND},
    **{
        f"{name}, best by validation": f"{name} on test data of the round with the best mean validation score"
        for name in BY_ROUND
    },
    "lowest STD of the curve": "smallest STD (ddof 0) over all evaluated rounds; read it beside the final one only",
    **{
        f"{name}, volatility": f"mean absolute change of {name} from one evaluated round to the next, in the second half "
        "of the run"
        for name in ("AVG", "STD")
    },
    "weight volatility": "mean absolute change of a client's weight from one of its rounds to the next, in the second half "
    "of the run",
    "AVG unseen": "mean score of the clients that are held out of training, on their test data",
    "MIN unseen": "smallest score of a client that is held out of training",
    "seconds per round": "wall-clock time of a round (median), all clients, on the machine of the run",
}
PERCENT = {name for name, formula in FORMULAS.items() if formula.percent} | {
    "AVG over domains", "STD over domains", "MIN over domains", "AVG by samples", "lowest STD of the curve",
    "gain mean", "gain min", "AVG unseen", "MIN unseen", "AVG, volatility", "STD, volatility",
    *(f"{name}, {which}" for name in BY_ROUND for which in ("last five", "best by validation")),
}  # fmt: skip
SMALLER_IS_BETTER = {
    "STD", "STD (ddof 1)", "variance", "range", "Gini", "STD over domains", "corrected variance",
    "loss", "worst loss", "best loss", "loss variance",
    "gap mean", "gap max", "gap variance", "losers", "lowest STD of the curve", "seconds per round", "STD, last five",
    "STD, best by validation", "AVG, volatility", "STD, volatility", "weight volatility",
}  # fmt: skip


def group_comparable(runs: Sequence[Recorded]) -> list[list[Recorded]]:
    """Runs with the same data and settings, whether they are finished or not. They differ in method and seed."""
    groups: list[list[Recorded]] = []
    for run in sorted(runs, key=lambda one: len(one.manifest["demanded"])):
        mates = next((group for group in groups if _comparable(group[0], run)), None)
        if mates is None:
            groups.append([run])
        else:
            mates.append(run)
    return groups


def group_studies(runs: Sequence[Recorded], rules: Rules = DEFAULT_RULES, view: View = DEFAULT_VIEW) -> list[Study]:
    """Group runs that may be compared into studies. Runs that are left out are named in the notes of their study."""
    found = []
    for members in group_comparable(runs):
        notes = []
        chosen: dict[str, dict[int, Recorded]] = {}
        for run in members:
            if run.is_finished and run.records.num_rows and not len(run.curve()[0]):
                notes.append(f"{run.method}, seed {run.seed}, is not in the figures: no client has test data.")
            elif not run.is_finished or not run.records.num_rows:
                total = run.manifest["rounds"]
                why = f": {run.manifest.get('why')}" if run.manifest.get("why") else ""
                notes.append(f"{run.method}, seed {run.seed}, is not in the figures: {run.manifest['status']} after "
                             f"{run.rounds_done} of {total} rounds{why}")  # fmt: skip
            elif run.seed in chosen.setdefault(run.method, {}):
                notes.append(f"{run.method}, seed {run.seed}, is there twice; the one in {run.place.name} is left out.")
            else:
                chosen[run.method][run.seed] = run
        whole = {method: dict(sorted(by_seed.items())) for method, by_seed in chosen.items() if by_seed}
        for method, by_seed in whole.items():
            for seed, run in by_seed.items():
                lost = [
                    c
                    for c, n, v in zip(run.clients, run.samples(), run.curve()[1][-1], strict=True)
                    if n and np.isnan(v)
                ]
                if lost:
                    notes.append(f"{method}, seed {seed}: {', '.join(lost)} has no score after the last round.")
        if whole:
            first = rules.find_reference(whole)
            ordered = dict(sorted(whole.items(), key=lambda item: (item[0] != first, _place(item[0]))))
            found.append(Study(ordered, tuple(notes), rules, view))
    known = list(dict.fromkeys(method for study in found for method in study.methods))
    if rules.reference is not None and known and rules.find_reference(known) is None:
        hint = did_you_mean(rules.reference, [name.split("(")[0] for name in known])
        raise EquipoiseError(f"No run has the reference `{rules.reference}`.{hint} Known: {', '.join(known)}.")
    return found


def _comparable(first: Recorded, second: Recorded) -> bool:
    """Whether two runs have the same data and settings. Settings of the training that a method demands may differ."""
    a, b = first.manifest, second.manifest
    free = {*a["demanded"], *b["demanded"]}
    names = {*a["training"], *b["training"]} - free  # a constant schedule is not recorded
    trained = all(a["training"].get(name) == b["training"].get(name) for name in names)
    same = all(a[name] == b[name] for name in ("model", "rounds", "participation", "buffers"))
    same = same and a.get("guard") == b.get("guard")
    same = same and a.get("eval_every", 1) == b.get("eval_every", 1)  # figures over rounds need the same rounds
    same = same and a.get("loss") == b.get("loss")
    return trained and same and _have_same_data(a["data"], b["data"])


def _have_same_data(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two runs have the same data, or data that are drawn anew in the same way for each seed."""
    if a["fingerprint"] == b["fingerprint"]:
        return True
    if not (a.get("redrawn") and b.get("redrawn")):
        return False
    names = [[client["name"] for client in one["clients"]] for one in (a, b)]
    return names[0] == names[1] and all(a[key] == b[key] for key in ("name", "arguments", "protocol", "classes"))


def _place(method: str) -> int:
    """Where a method is shown: FedAvg first, local-only and centralised training last."""
    return 0 if method.startswith("fedavg") else 2 if method.startswith(NO_METHODS) else 1
