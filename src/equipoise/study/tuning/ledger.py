"""The book of a search: its trials, kept by Optuna in a journal in the study's folder.

Several processes may work on one study. Each opens the book for a moment, alone: the lock ends with the process that
holds it, however that ends. The sampler that draws a trial is made anew from the search's seed and the trial's number,
so that a study which was killed goes on as it would have.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipoise.engine.folders import lock_folder
from equipoise.errors import EquipoiseError
from equipoise.seeds import key
from equipoise.study.tuning.plan import GENERATION, Contest, Plan
from equipoise.study.tuning.space import Point
from equipoise.training import Training

try:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError:
    raise EquipoiseError("Optuna is not installed. Say: pip install '.[tune]' in a checkout of Equipoise.") from None

JOURNAL, BOOK = "journal.log", "book"
PATIENCE = 120.0  # seconds that a process waits for the book
TRIES = 20  # draws for a trial, before one that was drawn before is taken again
LOWEST = -1.0  # the value of a trial that failed, in the eyes of the sampler


@dataclass(frozen=True)
class Reached:
    """What a trial had reached at one rung."""

    round: int  # rounds done
    values: Mapping[str, float]  # the validation score of each domain (or client), over the last evaluations
    state: str  # of convergence: `flat`, `rising` ...
    is_over: bool  # whether the run has ended: it is flat, or at its limit
    seconds: float  # of computing so far, drawing and scoring included
    upload: int  # bytes that all clients have uploaded so far
    failed: str = ""  # why the run could not be done


@dataclass(frozen=True)
class Trial:
    """One point of a contestant's space that is tried, and how far."""

    contestant: str
    number: int  # among the contestant's trials
    generation: int
    point: Point
    parameters: Mapping[str, Any]  # as the sampler chose them
    distributions: Mapping[str, BaseDistribution]  # among what it chose them
    reached: tuple[Reached, ...]  # one entry per rung
    is_settled: bool  # whether its generation is over, and the sampler knows its value

    @property
    def last(self) -> Reached:
        """What it had reached when it was last looked at."""
        return self.reached[-1]

    @property
    def name(self) -> str:
        """Its name among all trials of the study."""
        return f"{self.contestant}-{self.number}"


class _HeldElsewhere(JournalFileOpenLock):
    """No lock of the journal's own: the book is open in one process at a time, and a killed one leaves no lock behind."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Book:
    """The trials of a study, while this process alone has them open."""

    def __init__(self, contest: Contest, backend: BaseJournalBackend) -> None:
        self.contest = contest
        plan = contest.plan
        storage = JournalStorage(backend)
        directions = [StudyDirection.MAXIMIZE] * (2 if plan.objective == "pareto" else 1)
        known = set(optuna.get_all_study_names(storage))
        self.studies = {
            name: optuna.load_study(study_name=name, storage=storage)
            if name in known
            else optuna.create_study(study_name=name, storage=storage, directions=directions)
            for name in contest.spaces
        }

    def list_trials(self) -> dict[str, list[Trial]]:
        """All trials by contestant, in the order in which they were drawn."""
        return {
            name: [_read(name, one) for one in study.get_trials(deepcopy=False)] for name, study in self.studies.items()
        }

    def draw(self, contestant: str, generation: int) -> None:
        """Draw one more trial for a generation. What cannot be built is not drawn nor, if possible, what was drawn before.

        Draws are made in a copy of the study, and what comes out is added to the journal in one line: a study that is
        killed has a trial whole or not at all.
        """
        study, space = self.studies[contestant], self.contest.spaces[contestant]
        before = study.get_trials(deepcopy=False)
        known = [_read(contestant, one).point for one in before]
        usual = space.list_defaults()
        for attempt in range(TRIES):
            sampler = _make_sampler(self.contest.plan, contestant, len(before), attempt)
            copy = optuna.create_study(directions=study.directions, sampler=sampler)
            copy.add_trials(before)
            if generation == 0 and attempt == 0 and len(before) % 2 == 0:
                # The first trial is what a run does without tuning; some more train as usual, with drawn parameters.
                copy.enqueue_trial(usual if not before else {n: v for n, v in usual.items() if "." not in n})
            point = space.choose(copy.ask())
            if point is not None and (point not in known or attempt == TRIES - 1):
                drawn = copy.get_trials(deepcopy=False)[-1]
                noted = {"generation": generation, "method": point.method, "training": asdict(point.training)}
                study.add_trial(
                    create_trial(
                        state=TrialState.RUNNING,
                        params=drawn.params,
                        distributions=drawn.distributions,
                        user_attrs=noted,
                    )
                )
                return
        names = ", ".join(part.name for part in (*space.clients, *space.servers))
        raise EquipoiseError(f"In {TRIES} draws nothing came out that can be built of {names}. Name other methods.")

    def note(self, trial: Trial, rung: int, reached: Reached) -> None:
        """Write down what a trial has reached at a rung."""
        self._open(trial).set_user_attr(f"rung {rung}", asdict(reached))

    def settle(self, trial: Trial, is_top: bool, limits: Mapping[str, float]) -> None:
        """Tell the sampler what became of a trial. `limits` are the constraints: above 0 means broken."""
        plan, study, last = self.contest.plan, self.studies[trial.contestant], trial.last
        own = self._open(trial)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process that was killed here has written some of it
            for name, value in limits.items():
                own.set_constraint(name, value)
            if plan.objective == "pareto":
                values = [LOWEST] if last.failed else list(last.values.values())
                study.tell(trial.number, [sum(values) / len(values), min(values)])
                return
            score = LOWEST if last.failed else plan.score(last.values)
            own.report(score, last.round)
            study.tell(trial.number, score if is_top else None, TrialState.COMPLETE if is_top else TrialState.PRUNED)

    def _open(self, trial: Trial) -> optuna.Trial:
        study = self.studies[trial.contestant]
        return optuna.Trial(study, study.get_trials(deepcopy=False)[trial.number]._trial_id)


def _read(contestant: str, found: FrozenTrial) -> Trial:
    attributes = found.user_attrs
    reached: list[Reached] = []
    while f"rung {len(reached)}" in attributes:
        reached.append(Reached(**attributes[f"rung {len(reached)}"]))
    return Trial(
        contestant,
        found.number,
        attributes["generation"],
        Point(attributes["method"], Training(**attributes["training"])),
        dict(found.params),
        dict(found.distributions),
        tuple(reached),
        found.state != TrialState.RUNNING,
    )


def _make_sampler(plan: Plan, contestant: str, number: int, attempt: int) -> optuna.samplers.BaseSampler:
    seed = key(plan.search_seed, "tune", plan.job.dataset, contestant, number, attempt) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # parameters of methods that few trials have in common
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=GENERATION)


@contextmanager
def open_book(folder: Path, contest: Contest) -> Iterator[Book]:
    """Open the book for this process alone, waiting for others to close it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with hold(folder / BOOK):
        path = folder / JOURNAL
        _mend(path)
        yield Book(contest, JournalFileBackend(str(path), lock_obj=_HeldElsewhere(str(path))))


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone, waiting for others to leave it."""
    end = time.monotonic() + PATIENCE
    while True:
        with claim(folder, last=time.monotonic() > end) as is_mine:
            if is_mine:
                yield
                return
        time.sleep(0.05)


@contextmanager
def claim(folder: Path, last: bool = False) -> Iterator[bool]:
    """Hold a folder for this process alone, if no other holds it; on the `last` try, that is an error."""
    lock = lock_folder(folder, "the study")
    try:
        lock.__enter__()
    except EquipoiseError:
        if last:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.__exit__(None, None, None)


def _mend(path: Path) -> None:
    """Cut off a last line that a process which was killed has left unfinished."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
