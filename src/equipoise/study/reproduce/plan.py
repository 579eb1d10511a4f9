"""What has to be run for an entry, what of it is there already, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.data import Federation, load_federation
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean
from equipoise.runs.reading import Recorded, read
from equipoise.study.jobs import Job, find_finished, list_jobs
from equipoise.study.reproduce.entries import PRESETS, Entry, Preset, PresetName, Row
from equipoise.study.reproduce.figures import FIGURES
from equipoise.training import check_training_changes

ALONE = "local_only"


@dataclass(frozen=True, eq=False)
class Planned:
    """One run that an entry needs: the rows that read it, and where in the preset it belongs."""

    rows: tuple[str, ...]  # names
    data: str  # the name of the data in the preset
    job: Job
    settings: Settings

    @property
    def method(self) -> str:
        """The method, as the row names it."""
        return self.job.method


@dataclass(frozen=True)
class Plan:
    """All runs of an entry under a preset, and the data that they need."""

    entry: Entry
    preset_name: PresetName
    preset: Preset
    seeds: tuple[int, ...]
    runs: tuple[Planned, ...]
    data: Mapping[str, Federation]  # by the text that jobs have for it

    def choose(self, rows: Sequence[str] = ()) -> tuple[Planned, ...]:
        """The runs that these rows read (all, without any), and those of local training that their gaps need."""
        if not rows:
            return self.runs
        gaps = any(FIGURES[column.figure].needs_alone for column in self.entry.columns)
        return tuple(run for run in self.runs if set(run.rows) & set(rows) or (gaps and run.method == ALONE))


def choose_preset(entry: Entry, name: PresetName | None) -> PresetName:
    """The preset of this name; without one `cpu`, or the only one. A preset that an entry does not have is an error."""
    if name is None:
        return "cpu" if "cpu" in entry.presets else next(iter(entry.presets))
    if name not in entry.presets:
        raise EquipoiseError(f"`{entry.key}` has no preset `{name}`. It has: {', '.join(entry.presets)}.")
    return name


def check_rows(entry: Entry, names: Sequence[str]) -> tuple[str, ...]:
    """The rows that a user named. One that is not there is an error."""
    known = [row.name for row in entry.rows]
    for name in names:
        if name not in known:
            raise EquipoiseError(
                f"`{entry.key}` has no row `{name}`.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
    return tuple(names)


def build_plan(entry: Entry, preset_name: PresetName, seeds: Sequence[int] | None = None) -> Plan:
    """All runs of an entry. Its data are loaded, because a run's name follows from them."""
    preset = entry.presets[preset_name]
    chosen = tuple(preset.seeds if seeds is None else seeds)
    loaded: dict[str, Federation] = {}
    runs: list[Planned] = []
    for label, text in preset.data.items():
        mine = [row for row in entry.rows if _belongs(row, label)]
        trainings = {repr(dict(row.training)): {**preset.training, **row.training} for row in mine}
        for source, its_seeds in _list_sources(text, chosen).items():
            if source not in loaded:
                loaded[source] = load_federation(source)
            data = loaded[source]
            for name, changes in trainings.items():
                rows = [row for row in mine if repr(dict(row.training)) == name]
                template = Job(
                    dataset=source,
                    rounds=preset.rounds,
                    model=preset.model,
                    training=data.protocol.training.change(_check_changes(entry, changes)) if changes else None,
                    eval_every=preset.eval_every,
                    train_scores=entry.train_scores,
                    keep=entry.keep,
                )
                methods = list(dict.fromkeys(row.find_method(label) for row in mine))
                for job in list_jobs(methods, data, its_seeds, template):
                    reading = tuple(row.name for row in rows if row.find_method(label) == job.method)
                    if reading:
                        runs.append(Planned(reading, label, job, job.settings(data)))
    return Plan(entry, preset_name, preset, chosen, tuple(runs), loaded)


def _check_changes(entry: Entry, changes: Mapping[str, Any]) -> dict[str, Any]:
    mistakes = Mistakes()
    found = check_training_changes(changes, mistakes, lambda _: entry.key)
    mistakes.refuse()
    return found


def _list_sources(text: str, seeds: Sequence[int]) -> dict[str, list[int]]:
    """The data that the seeds use: the same for all, or another partition for each."""
    found: dict[str, list[int]] = {}
    for seed in seeds:
        found.setdefault(text.replace("{seed}", str(seed)), []).append(seed)
    return found


@dataclass(frozen=True)
class Found:
    """What is in a folder of a planned run."""

    run: Recorded | None  # the finished run
    why: str = ""  # there is none, in words


def find_run(planned: Planned, folder: Path) -> Found:
    """The finished run in this folder, or why there is none."""
    place = find_finished(planned.job, planned.settings, folder)
    if place is not None:
        return Found(read(place))
    try:
        begun = read(folder / planned.settings.name)
    except EquipoiseError:
        return Found(None, "not run")
    facts = begun.manifest
    if facts["status"] == "failed":
        return Found(None, f"failed: {facts.get('why') or 'no reason was recorded'}")
    if begun.is_finished:
        return Found(None, f"not run with --keep {','.join(planned.job.keep)}")
    return Found(None, f"not finished: {begun.rounds_done} of {facts['rounds']} rounds")


def list_datasets(entry: Entry) -> list[str]:
    """The names of the data sets that an entry needs, each once."""
    texts = [text for name in PRESETS if name in entry.presets for text in entry.presets[name].data.values()]
    return list(dict.fromkeys(text.split("(")[0] for text in texts))


def count_runs(entry: Entry, preset_name: PresetName) -> int:
    """How many runs a preset of an entry consists of."""
    preset = entry.presets[preset_name]
    methods = {(label, row.find_method(label)) for label in preset.data for row in entry.rows if _belongs(row, label)}
    return len(methods) * len(preset.seeds)


def _belongs(row: Row, label: str) -> bool:
    return bool(row.find_method(label)) and row.data in ("", label)
