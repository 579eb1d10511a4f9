"""The loss gap of a client: how far the global model is from the loss that the client reaches alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.parts.reports import mean_loss
from equipoise.roles import Beginning, Phase, Report
from equipoise.types import Tensors, Trained

# Training alone ends when the loss has fallen, over `PATIENCE` epochs, by less than this share of the first epoch's
# loss.
FLAT = 1e-3
PATIENCE = 10


@dataclass(frozen=True)
class LossGap(Report, gives=("gap", "optimum")):
    """Reports `gap`, the loss of the received model minus the client's optimal loss, and this `optimum` itself.

    Before its first round each client trains alone to find its optimal loss, unless it brings one that it knows
    (`Client.optimum`). The loss curve stays in the client's state.
    """

    split: Literal["validation", "train"] = "validation"  # the data on which losses are measured
    lstar: Literal["final", "best_val"] = "final"  # optimal loss: of the last epoch, or of the best one in validation
    epochs: int = 200  # most epochs of training alone
    early: bool = False  # whether the gap is reported in a probe before training

    @property
    def needs(self) -> tuple[str, ...]:
        """Validation data, unless only training data are used."""
        return ("validation",) if self.split == "validation" or self.lstar == "best_val" else ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In a probe before training, or after training."""
        return ("probe",) if self.early else ("train",)

    def start(self, beginning: Beginning) -> list[Tensors]:
        """Train each client alone that brings no optimum, until its training loss is flat or for `epochs`."""
        found = {
            client: {"optimum": torch.tensor(known), "curve": torch.full((self.epochs,), torch.nan)}
            for client, known in zip(beginning.clients, beginning.optima, strict=True)
            if known is not None
        }
        unknown = [client for client in beginning.clients if client not in found]
        return [{**found, **self._find_optima(beginning, unknown)}[client] for client in beginning.clients]

    def _find_optima(self, beginning: Beginning, clients: Sequence[int]) -> dict[int, Tensors]:
        """The optimal losses of clients that do not know theirs."""
        if not clients:
            return {}
        splits = dict.fromkeys(("train", self.split, *(("validation",) if self.lstar == "best_val" else ())))
        curves = beginning.train_alone(self.epochs, tuple(splits), is_flat, clients)
        judged = curves[self.split]
        last, best = (~judged.isnan()).sum(1) - 1, curves.get("validation", judged).nan_to_num(torch.inf).argmin(1)
        chosen = last if self.lstar == "final" else best
        optimum = judged[torch.arange(len(judged)), chosen]
        return {c: {"optimum": optimum[i], "curve": curves["train"][i]} for i, c in enumerate(clients)}

    def __call__(self, trained: Trained) -> Tensors:
        samples = trained.validation if self.split == "validation" else trained.train
        loss = mean_loss(trained, trained.received, samples)
        optimum = trained.states[self.key]["optimum"]
        return {"gap": loss - optimum, "optimum": optimum}


def is_flat(curve: Tensor) -> bool:
    """Whether the last `PATIENCE` epochs of a loss curve hardly improved on the best loss before them."""
    if len(curve) <= PATIENCE:
        return False
    before, lately = curve[:-PATIENCE].min(), curve[-PATIENCE:].min()
    return bool(before - lately < FLAT * curve[0])
