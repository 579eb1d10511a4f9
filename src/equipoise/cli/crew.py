"""The command line at one of several processes of a run: one of them prints and writes, the others help it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from equipoise.cli.screens import errors, screen
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.engine.ranks import Ranks

Found = TypeVar("Found")


@dataclass(frozen=True)
class Company:
    """The processes of a run, seen from a command. A command that was not started by `torchrun` is alone."""

    ranks: Ranks | None = None

    @classmethod
    def meet(cls, runner: str) -> Company:
        """Meet the other processes, if the runner needs some. All but the one that leads fall silent."""
        if runner != "distributed":
            return cls()
        from equipoise.engine.ranks import Ranks

        found = cls(Ranks.join())
        screen.quiet = errors.quiet = not found.leads
        return found

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.ranks is None or self.ranks.leads

    def do(self, work: Callable[[], Found]) -> Found:
        """Do something at every process. If it fails at one, it fails at all."""
        return work() if self.ranks is None else self.ranks.do_together(work)

    def ask_leader(self, work: Callable[[], Found]) -> Found:
        """What the leading process finds, at every process."""

        def find() -> Found | None:
            return work() if self.leads else None

        found = self.do(find)
        return found if self.ranks is None else self.ranks.tell(found)  # type: ignore[return-value]

    @contextmanager
    def say_once(self) -> Iterator[None]:
        """Let one process say why the run ends: the one that knows, or one of those that lost another."""
        from equipoise.engine.ranks import LostRankError

        try:
            yield
        except EquipoiseError as error:
            if self.ranks is not None and (self.leads or isinstance(error, LostRankError)):
                is_first = self.ranks.is_first_to_say()
                errors.quiet = not is_first and isinstance(error, LostRankError)
            raise


def refuse_alone(runner: str, why: str) -> None:
    """Refuse the runner of several processes for a command that cannot use it."""
    if runner == "distributed":
        raise EquipoiseError(f"runner `distributed` is for `equipoise run` with one method: {why}")
