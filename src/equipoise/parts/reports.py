"""Reports: what clients send to the server besides their updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.roles import Report
from equipoise.types import PERSONAL, Received, Samples, Tensors, Trained


def mean_loss(trained: Trained, model: Received, samples: Samples) -> Tensor:
    """The mean loss `[]` of a model on some samples, in eval mode."""
    total = torch.zeros(())
    for x, y, valid in trained.chunks(samples):
        losses = trained.loss(trained.apply(model.params, model.buffers, x).logits, y)
        total = total + (losses if valid is None else losses * valid).sum()
    return total / samples.size


@dataclass(frozen=True)
class SampleCount(Report, gives=("samples",)):
    """Reports `samples`, the client's number of training samples."""

    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        return {"samples": trained.train.size}


@dataclass(frozen=True)
class GlobalLoss(Report, gives=("loss",)):
    """Reports `loss`, the mean loss of the received model on the training data."""

    def __call__(self, trained: Trained) -> Tensors:
        return {"loss": mean_loss(trained, trained.received, trained.train)}


@dataclass(frozen=True)
class TrainedLoss(Report, gives=("loss_trained",)):
    """Reports `loss_trained`, the mean loss of the trained model on the training data."""

    def __call__(self, trained: Trained) -> Tensors:
        model = trained.received._replace(params=trained.params, buffers=trained.buffers)
        return {"loss_trained": mean_loss(trained, model, trained.train)}


@dataclass(frozen=True)
class LocalLoss(Report, gives=("loss_local",)):
    """Reports `loss_local`, the mean base loss over the samples of the local steps, which costs no computation.

    No method of the library needs it. Add it to one to see the training loss among its reports.
    """

    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        return {"loss_local": trained.loss_local}


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """The length of the update that a constant gradient of length one gives in so many steps, divided by the learning
    rate.

    >>> effective_steps(torch.tensor([2.0, 2.0]), 0.9), effective_steps(torch.tensor(2.0), 0.0)
    (tensor([2.9000, 2.9000]), tensor(2.))
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True)
class LocalSteps(Report, gives=("steps",)):
    """Reports `steps`, the number of local steps, for rules that divide by it."""

    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        return {"steps": trained.steps}


@dataclass(frozen=True)
class PersonalTensors(Report, gives=(PERSONAL,)):
    """Reports `personal [P]`, the client's personal parameters as one row, for a `share` part that mixes them."""

    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        return {PERSONAL: trained.personal.join(trained.params)}


@dataclass(frozen=True)
class ClassCounts(Report, gives=("class_counts",), needs=("classes",)):
    """Reports `class_counts [C]`, the number of training samples per class."""

    runs_model = False

    def __call__(self, trained: Trained) -> Tensors:
        counts: Tensor | float = 0.0
        for _, y, valid in trained.chunks(trained.train):
            member = F.one_hot(y, trained.classes).to(torch.get_default_dtype())
            counts = counts + (member if valid is None else member * valid[:, None]).sum(0)
        return {"class_counts": torch.as_tensor(counts)}
