"""Power of choice: of some candidates, those with the largest losses take part. Cho, Wang and Joshi, arXiv 2010.01243."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from equipoise.method import (
    EquipoiseError,
    Method,
    Remembered,
    Round,
    Select,
    Selected,
    State,
    Turnout,
    register,
    require,
)
from equipoise.parts.reports import GlobalLoss, LocalLoss
from equipoise.parts.selections import draw_by_samples, rank_largest
from equipoise.parts.weights import Uniform


@dataclass(frozen=True)
class PowerOfChoice(Select, by_columns=()):
    """Draws candidates by their samples, and selects those with the largest losses.

    The losses are those of the current model, for which the candidates are asked, or the clients' mean training losses
    in their last rounds, which the server remembers. A client that has not taken part yet comes first then.
    """

    candidates: int | None = None  # how many; None: twice the places of a round
    losses: Literal["asked", "remembered"] = "asked"  # where the losses come from

    @property
    def asks(self) -> tuple[str, ...]:
        """The loss of the current model, unless losses are remembered."""
        return ("loss",) if self.losses == "asked" else ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The loss during local training, where losses are remembered."""
        return () if self.losses == "asked" else ("loss_local",)

    @property
    def remembers(self) -> str:
        """The last loss of each client, where losses are remembered."""
        return "" if self.losses == "asked" else "its last training loss"

    def check(self, places: int, clients: int) -> None:
        """There must be a candidate for every place."""
        if self.candidates is not None and self.candidates < places:
            raise EquipoiseError(
                f"power_of_choice needs a candidate for each of the round's {places} places. Found candidates="
                f"{self.candidates}: take at least {places}, or a smaller participation."
            )

    def find_candidates(self, turnout: Turnout, state: State) -> list[int]:
        """Clients drawn without replacement, with chances proportional to their samples."""
        return draw_by_samples(turnout, self.candidates or 2 * turnout.places)

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        if self.losses == "asked":
            losses = dict(zip(turnout.candidates, turnout.reports["loss"].double().tolist(), strict=True))
        else:
            known = state.rows("loss", default=torch.tensor(torch.inf, dtype=torch.float64))
            losses = {c: known[c].item() for c in self.find_candidates(turnout, state)}
        chosen = rank_largest(turnout, losses)[: turnout.places]
        passed = {c: f"a candidate whose loss {loss:.4g} was not among the {len(chosen)} largest"
                  for c, loss in losses.items() if c not in chosen}  # fmt: skip
        return Selected(chosen, why=passed, others="not drawn as a candidate", values=losses)

    def remember(self, round: Round, state: State) -> Remembered:
        """The round's training losses, where losses are remembered."""
        if self.losses == "asked":
            return {}
        return {"loss": state.rows("loss").put(round.clients, round.reports["loss_local"].double())}


@register(
    title="Of some candidates, those with the largest losses take part",
    reference="Cho, Wang, Joshi, Client selection in federated learning: convergence analysis and power-of-choice "
    "selection strategies, arXiv 2010.01243",
)
def power_of_choice(candidates: int | None = None, losses: Literal["asked", "remembered"] = "asked") -> Method:
    """`candidates` clients are drawn by their samples; those with the largest losses take part, with equal weights.

    How many take part is the run's participation; `candidates` is by default twice that. `losses="asked"` asks the
    candidates for the loss of the current model before the round. `losses="remembered"` (the paper's rpow-d) asks
    nothing: the server keeps each client's mean training loss of its last round, and tries everyone once.
    """
    require(candidates is None or candidates >= 1, "candidates", "at least 1", candidates)
    report = GlobalLoss() if losses == "asked" else LocalLoss()
    return Method(select=PowerOfChoice(candidates, losses), reports=(report,), weigh=Uniform())
