"""The page of a study: one HTML file that needs no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from equipoise.grammar import say_count
from equipoise.metrics import Interval
from equipoise.study.report.charts import Bars, Chart, Line, Panel, Points
from equipoise.study.report.headline import say_half
from equipoise.study.report.page import build_table, say_difference, wrap_page
from equipoise.study.report.plots import draw_arrows
from equipoise.study.report.svg import draw_svg
from equipoise.study.report.tables import say_bytes
from equipoise.study.report.verdict import say_points
from equipoise.study.tuning.choice import LOCAL, MOVING, Choice
from equipoise.study.tuning.commands import write_deploy, write_run
from equipoise.study.tuning.costs import list_costs
from equipoise.study.tuning.importance import weigh_choices
from equipoise.study.tuning.judging import Judgement, tell_outcome
from equipoise.study.tuning.ledger import Trial
from equipoise.study.tuning.plan import COMPOSITIONS, FRESH, SEEDS_OF_CHOICE, Contest, Plan
from equipoise.study.tuning.space import REFERENCE
from equipoise.study.tuning.steps import Board, is_top
from equipoise.training import Training

OBJECTIVES = {
    "worst": "the score of the worst domain",
    "worst10": "the mean score of the worst tenth of the domains",
    "pareto": "the mean of average and worst domain",
}


def build_page(contest: Contest, board: Board, choice: Choice, judgement: Judgement) -> str:
    """The page as HTML."""
    plan = contest.plan
    name = judgement.study.name
    links = (
        ("outcome", "Outcome"), ("judged", "Judged on test data"), ("duels", "The composition against each rival"),
        ("arrows", "Who gained and who paid"), ("front", "Front"), ("mattered", "What mattered"), ("history", "History"),
        ("cost", "Cost"), ("trials", "All trials"),
    )  # fmt: skip
    contents = " · ".join(f"<a href='#{key}'>{escape(title)}</a>" for key, title in links)
    body = [
        f"<section><h1>Tuned for {escape(name)}</h1><p class='setting'>{escape(_setting(contest, board))}</p>",
        _outcome(plan, choice, judgement),
        *(f"<p class='note'>{escape(f'{one} is left out: {why}')}</p>" for one, why in contest.left_out.items()),
        _judged(choice, judgement),
        _duels(judgement),
        _arrows(choice, judgement),
        draw_svg(draw_front(plan, board)),
        _mattered(plan, board),
        draw_svg(draw_history(plan, board)),
        _cost(board, choice, judgement),
        _trials(plan, board),
        "</section>",
    ]
    return wrap_page(
        f"tuned for {name}", f"<nav aria-label='Contents'><p>{contents}</p></nav><main>{''.join(body)}</main>"
    )


def _setting(contest: Contest, board: Board) -> str:
    plan = contest.plan
    tried = max(len(trials) for trials in board.values())
    climbed = ", ".join(str(r) for r in plan.rungs)
    return (
        f"{len(board)} contestants x {tried} trials; compared after {climbed} rounds, the better half goes on; each run ends "
        f"when it is flat. Searched for {OBJECTIVES[plan.objective]} (of a client where there are no domains) on validation "
        f"data. Chosen with {SEEDS_OF_CHOICE} seeds on validation data, the search had no test data. Judged once on test "
        f"data, with the seeds {FRESH} to {FRESH + plan.seeds - 1}."
    )


def _outcome(plan: Plan, choice: Choice, judgement: Judgement) -> str:
    headline, *rest = tell_outcome(choice, judgement)
    point = judgement.points[choice.winner]
    told = "".join(f"<li>{escape(text)}</li>" for text in rest)
    commands = "".join(
        f"<dt>{title}</dt><dd><code>{escape(command)}</code></dd>"
        for title, command in (("Train it", write_run(plan.job, point)), ("Deploy it", write_deploy(plan.job, point)))
    )
    return f"<div class='verdict' id='outcome'><p>{escape(headline)}</p><ul>{told}</ul><dl>{commands}</dl></div>"


def say_training(training: Training) -> str:
    """Local training in a few words."""
    count, unit = (training.epochs, "epoch") if training.steps is None else (training.steps, "step")
    return f"lr {training.lr:g}, {say_count(count, unit)}, batch {training.batch or 'full'}"


def _percent(value: Interval) -> str:
    return f"{say_points(value.mean)}{say_half(value)}"


def _judged(choice: Choice, judgement: Judgement) -> str:
    study = judgement.study
    words = {verdict.method: verdict.word for verdict in judgement.verdicts}
    rows = []
    for name in study.runs:
        duel = judgement.duel(name, REFERENCE) if name != REFERENCE and REFERENCE in study.runs else None
        figures = [_percent(judgement.interval(name, figure)) for figure in ("AVG", "STD", "MIN")]
        differences = [say_difference(one) for one in (duel.worst, duel.average)] if duel else ["-", "-"]
        rows.append([name, *figures, *differences, words.get(name, "-")])
    head = ("contestant", "AVG", "STD", "MIN", "MIN against fedavg", "AVG against fedavg", "levelling down")
    over = "domains" if study.named_domains else "clients"
    return (
        f"<h2 id='judged'>Judged on test data</h2>{build_table(head, rows)}<p class='caption'>Test {escape(study.score)} in "
        f"percent over {over} after the last round, mean and half the 95 % interval over fresh seeds; differences are paired "
        "by seed. The levelling-down check is that of the report, over clients, against tuned fedavg and local-only "
        f"training.</p>{_stands_for(choice)}"
    )


def _stands_for(choice: Choice) -> str:
    """What validation data chose of each contestant."""
    rows = [
        [
            name,
            one.candidate.point.method,
            say_training(one.candidate.point.training),
            one.candidate.state,
            say_points(one.score),
            one.verdict.word if one.verdict else "-",
        ]
        for name, one in choice.by_contestant.items()
    ]
    head = ("contestant", "stands for", "local training", "convergence", "objective", "levelling down")
    return (
        f"{build_table(head, rows)}<p class='caption'>What validation data chose of each contestant, after the same budget. "
        "Objective and levelling-down check are on validation data, over domains where there are some.</p>"
    )


def _duels(judgement: Judgement) -> str:
    rows = [
        [
            duel.rival,
            say_difference(duel.worst),
            say_difference(duel.average),
            "yes" if duel.is_sure else "within the spread of seeds" if duel.is_won else "no",
        ]
        for duel in judgement.duels
    ]
    head = ("rival", "worst", "average", "serves the worst better, at no lower average")
    return (
        f"<h2 id='duels'>The composition against each rival</h2>{build_table(head, rows)}<p class='caption'>Differences in "
        "points on test data, paired by seed, with half the 95 % interval; above 0 the composition is better.</p>"
    )


def _arrows(choice: Choice, judgement: Judgement) -> str:
    """The arrows of the winner, or of the composition where nothing beats tuned FedAvg."""
    shown = choice.winner if choice.winner != REFERENCE else COMPOSITIONS
    runs = judgement.study.runs
    chart = draw_arrows(replace(judgement.study, runs={n: runs[n] for n in (REFERENCE, shown, LOCAL) if n in runs}))
    return draw_svg(chart) if chart else ""


# --------------------------------------------------------------------------- the search
def _place(trial: Trial) -> tuple[float, float]:
    values = list(trial.last.values.values())
    return 100 * min(values), 100 * sum(values) / len(values)


def draw_front(plan: Plan, board: Board) -> Chart:
    """AVG against MIN on validation data, a point per trial that got to the last rung, with its command."""
    marks: list[Points | Line] = []
    top = {name: [trial for trial in trials if is_top(plan, trial)] for name, trials in board.items()}
    places = [_place(trial) for trials in top.values() for trial in trials]
    front = sorted({p for p in places if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in places)})
    if len(front) > 1:
        marks.append(Line("front", [p[0] for p in front], [p[1] for p in front], 6, dashed=True))
    for colour, (name, trials) in enumerate(top.items()):
        if trials:
            xs, ys = zip(*map(_place, trials), strict=True)
            notes = [f"{_say_place(trial)}: {write_run(plan.job, trial.point)}" for trial in trials]
            marks.append(Points(name, xs, ys, colour, notes))
    caption = (
        "Validation data, the trials that got to the last rung; up is a better average, right a better worst domain. The "
        "dashed line joins those that no other beats in both. Point at one for the command that trains it."
    )
    return Chart("front", "Front", caption, [Panel("", marks, "MIN in percent", "AVG in percent", wide=True)])


def _say_place(trial: Trial) -> str:
    worst, average = _place(trial)
    moving = f", still {trial.last.state}" if trial.last.state in MOVING else ""
    return f"MIN {worst:.1f}, AVG {average:.1f}{moving}"


def draw_history(plan: Plan, board: Board) -> Chart:
    """The objective of each trial in the order of drawing, and the best so far of those that got to the last rung."""
    marks: list[Points | Line] = []
    for colour, name in ((0, COMPOSITIONS), (1, REFERENCE)):
        trials = [trial for trial in board[name] if trial.reached and not trial.last.failed]
        scores = [100 * plan.score(trial.last.values) for trial in trials]
        numbers = [float(trial.number + 1) for trial in trials]
        notes = [f"{trial.point.method}: {score:.1f} after {trial.last.round} rounds" for trial, score in
                 zip(trials, scores, strict=True)]  # fmt: skip
        marks.append(Points(name, numbers, scores, colour, notes))
        best: list[float] = []
        climbed: list[float] = []
        for trial, score, number in zip(trials, scores, numbers, strict=True):
            if is_top(plan, trial):
                best.append(max(score, best[-1] if best else score))
                climbed.append(number)
        if climbed:
            marks.append(Line(f"best of {name}", [*climbed, numbers[-1]], [*best, best[-1]], colour))
    caption = (
        f"{OBJECTIVES[plan.objective].capitalize()} on validation data when a trial was last looked at. The lines are the best "
        "so far among trials that got to the last rung; those that were left behind may lie above them, because some methods "
        "are good early and worse later."
    )
    panel = Panel("", marks, "trial", "objective in percent", wide=True, whole=True)
    return Chart("history", "History", caption, [panel])


def _mattered(plan: Plan, board: Board) -> str:
    shares = weigh_choices(plan, board[COMPOSITIONS])
    if not shares:
        return "<h2 id='mattered'>What mattered</h2><p class='note'>Too few trials to tell.</p>"
    places = [float(i) for i in range(len(shares))]
    notes = [f"{one.name}: {100 * one.share:.0f} % among {one.trials} trials" for one in shares]
    bars = Bars("share", places, [100 * one.share for one in shares], 0, 0.8, notes)
    ticks = {place: one.name for place, one in zip(places, shares, strict=True)}
    caption = (
        "How much of the variance of the objective each choice explains among the compositions, after the first rung, by "
        "functional analysis of variance; a method's own parameter among the trials with that method. With few trials "
        "this is a hint."
    )
    panel = Panel("", [bars], "", "percent of the variance", x_ticks=ticks, wide=True)
    return draw_svg(Chart("mattered", "What mattered", caption, [panel]))


def _cost(board: Board, choice: Choice, judgement: Judgement) -> str:
    costs = list_costs(board, choice, judgement)
    rows = [
        [cost.what, str(cost.runs), f"{cost.rounds:,}", f"{cost.seconds:.0f}", say_bytes(cost.upload)] for cost in costs
    ]
    whole = (sum(one.runs for one in costs), sum(one.rounds for one in costs))
    seconds, upload = sum(one.seconds for one in costs), sum(one.upload for one in costs)
    rows.append(["all", str(whole[0]), f"{whole[1]:,}", f"{seconds:.0f}", say_bytes(upload)])
    head = ("what", "runs", "rounds", "seconds", "uploaded by all clients")
    return (
        f"<h2 id='cost'>Cost</h2>{build_table(head, rows)}<p class='caption'>Seconds of computing on the machine of the "
        "search. Uploads are what real sites would have sent.</p>"
    )


def _trials(plan: Plan, board: Board) -> str:
    rows = []
    for name, trials in board.items():
        for trial in trials:
            if trial.reached:
                last = trial.last
                worst, average = ("-", "-") if last.failed else (f"{value:.1f}" for value in _place(trial))
                state = last.failed or last.state
                rows.append(
                    [f"{name} {trial.number + 1}", trial.point.method, say_training(trial.point.training),
                     f"{len(trial.reached)} of {len(plan.rungs)}", str(last.round), state, average, worst]
                )  # fmt: skip
    head: Sequence[str] = ("trial", "method", "local training", "rung", "rounds", "convergence", "AVG", "MIN")
    return (
        f"<h2 id='trials'>All trials</h2>{build_table(head, rows)}<p class='caption'>Validation data, when the trial was last "
        "looked at.</p>"
    )
