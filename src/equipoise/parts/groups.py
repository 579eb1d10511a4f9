"""What clients count of the groups of their samples, at the received model, on their training data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Report
from equipoise.types import Tensors, Trained

POSITIVE = 1  # the position of the positive class
GROUP_WEIGHTS = "group_weights"  # the name under which the server sends weights [2, groups], by truth and group


def _count(trained: Trained) -> tuple[Tensor, Tensor]:
    """The training samples by group, truth and answer `[Z, 2, 2]`, and the sums of their losses `[Z, 2]`."""
    counts, losses = torch.zeros(()), torch.zeros(())
    start = 0
    model = trained.received
    whole = trained.group_of(trained.train)
    for x, y, valid in trained.chunks(trained.train):
        outputs = trained.apply(model.params, model.buffers, x).logits
        group = F.one_hot(whole[start : start + len(y)], trained.groups).to(outputs.dtype)
        start += len(y)
        group = group if valid is None else group * valid[:, None]
        truth, answer = (_is_positive(value) for value in (y, trained.loss.decide(outputs)))
        counts = counts + torch.einsum("nz,nt,na->zta", group, truth.to(group), answer.to(group))
        losses = losses + torch.einsum("nz,nt,n->zt", group, truth.to(group), trained.loss(outputs, y))
    return counts, losses


def _is_positive(y: Tensor) -> Tensor:
    return F.one_hot((y == POSITIVE).long(), 2)


@dataclass(frozen=True)
class GroupCounts(Report, gives=("group_counts",), needs=("groups", "classes")):
    """Reports `group_counts [Z, 2, 2]`: training samples by group, truth and answer of the received model."""

    def __call__(self, trained: Trained) -> Tensors:
        return {"group_counts": _count(trained)[0]}


@dataclass(frozen=True)
class GroupLosses(Report, gives=("group_sizes", "group_losses", "group_weight"), needs=("groups", "classes")):
    """Reports `group_sizes [Z, 2]` and `group_losses [Z, 2]`: training samples, and the sums of the received model's
    losses, by group and truth; and `group_weight`, the sum of the weights that the server put on these samples."""

    def __call__(self, trained: Trained) -> Tensors:
        counts, losses = _count(trained)
        sizes = counts.sum(2)
        weights = trained.received.shared.get(GROUP_WEIGHTS)
        return {
            "group_sizes": sizes,
            "group_losses": losses,
            "group_weight": sizes.sum() if weights is None else (sizes * weights.T.to(sizes)).sum(),
        }
