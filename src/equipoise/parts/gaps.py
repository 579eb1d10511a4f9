"""The loss gap of a client: how far the global model is from the loss that the client reaches alone."""

from __future__ import annotations

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
class LossGap(Report, gives=("gap",)):
    """Reports `gap`: the loss of the received model minus the client's optimal loss.

    Before its first round each client trains alone to find its optimal loss. Optimal loss and loss curve stay in the
    client's state.
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
        """Train each client alone from the first model, until its training loss is flat or for `epochs`."""
        splits = dict.fromkeys(("train", self.split, *(("validation",) if self.lstar == "best_val" else ())))
        curves = beginning.train_alone(self.epochs, tuple(splits), is_flat)
        judged = curves[self.split]
        last, best = (~judged.isnan()).sum(1) - 1, curves.get("validation", judged).nan_to_num(torch.inf).argmin(1)
        chosen = last if self.lstar == "final" else best
        optimum = judged[torch.arange(len(judged)), chosen]
        return [{"optimum": optimum[i], "curve": curves["train"][i]} for i in range(len(judged))]

    def __call__(self, trained: Trained) -> Tensors:
        samples = trained.validation if self.split == "validation" else trained.train
        loss = mean_loss(trained, trained.received, samples)
        return {"gap": loss - trained.states[self.key]["optimum"]}


def is_flat(curve: Tensor) -> bool:
    """Whether the last `PATIENCE` epochs of a loss curve hardly improved on the best loss before them."""
    if len(curve) <= PATIENCE:
        return False
    before, lately = curve[:-PATIENCE].min(), curve[-PATIENCE:].min()
    return bool(before - lately < FLAT * curve[0])
