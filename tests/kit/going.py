"""Runs in progress: real runs whose rounds are written one by one, with clients that answer, are silent or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from equipoise import Run
from equipoise.engine.result import Rejection, RoundRecord
from equipoise.runs.writing import Recorder


class Going:
    """The folder of a run that is over already, written as if it were still going on."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.recorder = run, Recorder(run, folder)
        self.done, self.is_over = 0, False

    def add(self, rounds: int = 1, rejected: Mapping[str, str] | None = None) -> None:
        """Write the next rounds. The answers of the clients that `rejected` names did not count, for these reasons."""
        for record in self.run.rounds[self.done : self.done + rounds]:
            self.recorder.add(self._without(record, rejected or {}))
            self.done += 1

    def finish(self) -> Path:
        """End the run."""
        self.is_over = True
        return self.recorder.finish(self.run)

    def fail(self, why: str = "the test is over") -> None:
        """End the run before its last round."""
        if not self.is_over:
            self.is_over = True
            self.recorder.fail(why)

    def _without(self, record: RoundRecord, rejected: Mapping[str, str]) -> RoundRecord:
        names = [client.name for client in self.run.federation.clients]
        left = [i for i, k in enumerate(record.clients) if names[k] not in rejected]
        return replace(
            record,
            clients=tuple(record.clients[i] for i in left),
            weights=tuple(record.weights[i] for i in left),
            figures={n: tuple(v[i] for i in left) if len(v) > 1 else v for n, v in record.figures.items()},
            scores=tuple(score for score in record.scores if score.client not in rejected),
            rejected=tuple(Rejection(name, why) for name, why in rejected.items()),
        )
