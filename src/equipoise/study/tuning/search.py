"""The search: draws, runs and ranks trials until the budget is spent, beside any other process that works on the study."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.data import Federation
from equipoise.engine.result import RoundRecord
from equipoise.errors import EquipoiseError
from equipoise.study.tuning.ledger import Book, Reached, Trial, claim, open_book
from equipoise.study.tuning.plan import CONFIRMED, FEWEST, SEEDS_OF_CHOICE, Contest, Plan
from equipoise.study.tuning.space import REFERENCE
from equipoise.study.tuning.steps import Board, Climb, Draw, Settle, is_top, limit, list_steps, rank
from equipoise.study.tuning.trials import WORK, climb, forget

WAIT = 0.2  # seconds until a process that has nothing to do looks again


@dataclass(frozen=True)
class News:
    """How far a search is, for whoever watches it."""

    done: int  # rungs that were climbed
    total: int | None  # of all; None: as many as the minutes allow
    minutes: float  # of computing so far
    trial: Trial | None  # that has just reached a rung
    best: Trial | None  # among those of the compositions that got furthest
    reference: Trial | None  # the best of FedAvg so far


Watcher = Callable[[News], None]


def search(
    contest: Contest,
    data: Federation,
    folder: Path,
    on_news: Watcher,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
) -> Board:
    """Do all trials of the study that other processes do not do, and return what is in the book when all are done.

    `data` hold no test data.
    """
    generation = 0
    while contest.plan.size_of(generation):
        board = _do_generation(contest, data, folder, generation, on_news, on_round)
        generation += 1
        if is_spent(contest.plan, board, generation):
            break
    return board


def _do_generation(
    contest: Contest,
    data: Federation,
    folder: Path,
    generation: int,
    on_news: Watcher,
    on_round: Callable[[RoundRecord], None],
) -> Board:
    while True:
        began = time.perf_counter()
        with _take_step(contest, folder, generation) as taken:
            if isinstance(taken, Climb):
                reached = climb(contest.plan, taken.trial, taken.rung, data, folder, on_round)
                # Drawing, building and scoring are computing, too: for small data they take longer than training.
                seconds = time.perf_counter() - began
                reached = replace(reached, seconds=seconds + (taken.trial.last.seconds if taken.rung else 0.0))
                with open_book(folder, contest) as book:
                    book.note(taken.trial, taken.rung, reached)
                    board = book.list_trials()
                _refuse_too_short(contest.plan, board)
                on_news(tell_news(contest.plan, board, taken.trial))
            elif taken is not None:
                return taken
            else:
                time.sleep(WAIT)


@contextmanager
def _take_step(contest: Contest, folder: Path, generation: int) -> Iterator[Climb | Board | None]:
    """A run that no other process does, held while it is done; the board, if the generation is over; None: wait."""
    with ExitStack() as kept:
        with open_book(folder, contest) as book:
            while True:
                board = book.list_trials()
                steps = list_steps(contest.plan, board, generation)
                quick = [step for step in steps if not isinstance(step, Climb)]
                if not quick:
                    break
                _do_at_once(quick[0], book, board, folder)
            runs = (step for step in steps if isinstance(step, Climb))
            free = (run for run in runs if kept.enter_context(claim(folder / WORK / run.trial.name)))
            found = next(free, None) if steps else board
        yield found


def _do_at_once(step: Draw | Settle, book: Book, board: Board, folder: Path) -> None:
    """Do what takes no time, while the book is open."""
    if isinstance(step, Draw):
        book.draw(step.contestant, step.generation)
        return
    plan = book.contest.plan
    references = [one for one in board[REFERENCE] if one.generation <= step.generation]
    for trial in board[step.contestant]:
        if trial.generation == step.generation and not trial.is_settled:
            book.settle(trial, is_top(plan, trial), limit(plan, trial, references))
            forget(trial, folder)


# --------------------------------------------------------------------------- the budget
def count_seconds(board: Board) -> float:
    """The seconds of computing that all trials have taken."""
    return sum(trial.last.seconds for trials in board.values() for trial in trials if trial.reached)


def estimate_rest(plan: Plan, board: Board) -> float:
    """The seconds that choice and judgement will take, by the trials that went all the way."""
    whole = [trial.last.seconds for trials in board.values() for trial in trials if is_top(plan, trial)]
    runs = len(board) * (CONFIRMED * (SEEDS_OF_CHOICE - 1) + plan.seeds) + SEEDS_OF_CHOICE + plan.seeds
    return runs * sum(whole) / len(whole) if whole else 0.0


def is_spent(plan: Plan, board: Board, generations: int) -> bool:
    """Whether the minutes do not allow for another generation after these.

    Only these count, not what other processes may have begun: so all of them come to the same answer.
    """
    if plan.minutes is None:
        return False
    past = {name: [trial for trial in trials if trial.generation < generations] for name, trials in board.items()}
    spent = count_seconds(past)
    return spent * (generations + 1) / generations + estimate_rest(plan, past) > 60 * plan.minutes


def _refuse_too_short(plan: Plan, board: Board) -> None:
    """Refuse minutes that are too few for the first rung of all contestants, as soon as two trials have been timed: the
    first one draws and imports what later ones find."""
    tried = [trial.last for trials in board.values() for trial in trials if trial.reached and not trial.last.failed]
    if plan.minutes is None or len(tried) != 2 or len(tried[0].values) == 0:
        return
    seconds = min(one.seconds for one in tried)
    needed = seconds * plan.size_of(0) * len(board) / 60
    if needed > plan.minutes:
        raise EquipoiseError(
            f"The budget is too small for one rung: {plan.rungs[0]} rounds take {seconds:.1f} s, and "
            f"{plan.size_of(0)} trials of {len(board)} contestants {needed:.1f} minutes. Found minutes={plan.minutes:g}: give "
            f"--minutes {max(1, round(4 * needed))}, or --trials {FEWEST}, or fewer --rounds."
        )


# --------------------------------------------------------------------------- news
def tell_news(plan: Plan, board: Board, trial: Trial | None = None) -> News:
    """How far the search is."""
    done = sum(len(one.reached) for trials in board.values() for one in trials)
    total = None if plan.trials is None else len(board) * count_rungs(plan)
    contestants = list(board)
    return News(
        done, total, count_seconds(board) / 60, trial, find_leader(plan, board, contestants[-1]),
        find_leader(plan, board, REFERENCE),
    )  # fmt: skip


def count_rungs(plan: Plan) -> int:
    """How many rungs the trials of a contestant climb, if none fails."""
    total, generation = 0, 0
    while climbing := plan.size_of(generation):
        for _ in plan.rungs:
            total += climbing
            climbing = -(-climbing // 2)
        generation += 1
    return total


def find_leader(plan: Plan, board: Board, contestant: str) -> Trial | None:
    """The best trial of a contestant among those that got furthest."""
    tried = [trial for trial in board[contestant] if trial.reached and not trial.last.failed]
    furthest: tuple[Reached, ...] = max((trial.reached for trial in tried), key=len, default=())
    return max(
        (trial for trial in tried if len(trial.reached) == len(furthest)),
        key=lambda trial: rank(plan, trial.last),
        default=None,
    )
