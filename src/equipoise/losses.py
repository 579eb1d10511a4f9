"""What a task minimises, as a value: the loss of a sample, its gradient, and what the model's outputs say.

A loss is written for any number of samples: outputs `[..., outputs]` and targets `[...]` give losses `[...]`. Its
gradient with respect to the outputs is written down, too, so that networks of linear layers need no autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, Registry, join_words, parse_one, require

# What a sample is to be mapped to: one of several classes, a number, or a yes or no for each of several labels.
Target = Literal["classes", "number", "labels"]
ACCURACY, EXPLAINED = "accuracy", "explained"
SCORES = (ACCURACY, EXPLAINED)  # the scores by which clients are compared; a run has one of them


@dataclass(frozen=True)
class Loss:
    """The loss of a sample. A subclass says which target it is for; its parameters are its fields.

    The score of a model, by which clients are compared, is a share whose largest value is 1: `accuracy`, or for numbers
    `explained`, which is 1 minus the squared error in units of the targets' variance over all clients' training data.
    """

    def __str__(self) -> str:
        """The loss as it can be parsed: its name, and the parameters that differ from their defaults."""
        given = tuple((f.name, v) for f in fields(self) if (v := getattr(self, f.name)) != f.default)
        return str(Call(self.name, given))

    @property
    def name(self) -> str:
        """The name by which it is parsed."""
        return next(name for name, entry in LOSSES.items() if entry.function is type(self))

    @property
    def target(self) -> Target:
        """What it compares the model's outputs with."""
        return "classes"

    @property
    def score(self) -> str:
        """The name of the score by which clients are compared: higher is better, and 1 is the most."""
        return EXPLAINED if self.target == "number" else ACCURACY

    def count_outputs(self, names: int) -> int:
        """How many outputs the model has, for so many classes, labels or numbers to predict."""
        return names

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The losses of the samples, which autograd can differentiate."""
        raise NotImplementedError

    def differentiate(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of the samples, and the gradient of each with respect to its outputs. No autograd is involved."""
        raise NotImplementedError

    def measure_margins(self, outputs: Tensor) -> Tensor:
        """How much the model leans to yes, `[n, questions]`: above 0 more than to no.

        With two classes there is one question, whether it is the second class; with more, or with labels, there is one
        per class or label.
        """
        raise NotImplementedError

    def decide(self, outputs: Tensor) -> Tensor:
        """The model's answers: classes `[n]`, yes (1) or no (0) per label `[n, labels]`, or numbers `[n]`."""
        raise NotImplementedError

    def judge(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The score of each sample, `[n]`: for classes 1 if the answer is right, for labels the share of right ones."""
        return (self.decide(outputs) == y).float()


# --------------------------------------------------------------------------- classes
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The cross-entropy of several classes, one output per class.

    `weights` has one factor per class on the losses of its samples; `smoothing` moves this share of the target evenly
    to all classes. A mean over samples divides by their number, not by the sum of the weights.
    """

    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        positive = self.weights is None or (len(self.weights) > 0 and min(self.weights) > 0)
        require(positive, "weights", "above 0, one per class", self.weights)
        require(0 <= self.smoothing < 1, "smoothing", "at least 0 and below 1", self.smoothing)

    def count_outputs(self, names: int) -> int:
        """One per class."""
        if self.weights is not None and len(self.weights) != names:
            raise EquipoiseError(
                f"Loss `{self}` has {len(self.weights)} weights for {names} classes. Give one per class."
            )
        return names

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        flat, classes = (outputs.flatten(0, -2), y.flatten()) if y.dim() > 1 else (outputs, y)
        losses = F.cross_entropy(flat, classes, reduction="none", label_smoothing=self.smoothing)
        if self.weights is not None:
            losses = losses * self._weigh(classes, losses)
        return losses.view(y.shape) if y.dim() > 1 else losses

    def differentiate(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        place = y.unsqueeze(-1)
        logarithms = torch.log_softmax(outputs, -1)
        picked = logarithms.gather(-1, place)
        losses = picked.neg().squeeze(-1)
        if self.smoothing:
            losses = (1 - self.smoothing) * losses - self.smoothing * logarithms.mean(-1)
        delta = logarithms.exp_().scatter_add_(-1, place, torch.full_like(picked, self.smoothing - 1.0))
        if self.smoothing:
            delta -= self.smoothing / delta.shape[-1]
        if self.weights is not None:
            factor = self._weigh(y, losses)
            losses, delta = losses * factor, delta.mul_(factor.unsqueeze(-1))
        return losses, delta

    def _weigh(self, y: Tensor, losses: Tensor) -> Tensor:
        return losses.new_tensor(self.weights)[y]

    def measure_margins(self, outputs: Tensor) -> Tensor:
        if outputs.shape[-1] == 2:
            return outputs[:, 1:] - outputs[:, :1]
        logarithms = torch.log_softmax(outputs, -1)
        return logarithms - torch.log1p(-logarithms.exp()).clamp(min=-50)  # log p / (1 - p) of each class

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)


@dataclass(frozen=True)
class Binary(Loss):
    """The logistic loss of two classes with one output: the logarithm of the odds of the second class.

    `weight` is a factor on the losses of the second class. The model answers with the second class where its
    probability is at least `threshold`.
    """

    weight: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        require(self.weight > 0, "weight", "above 0", self.weight)
        _check_threshold(self.threshold)

    def count_outputs(self, names: int) -> int:
        """One."""
        if names != 2:
            raise EquipoiseError(f"Loss `{self}` is for two classes. Found {names}: use cross_entropy.")
        return 1

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        odds, yes = outputs.squeeze(-1), y.to(outputs.dtype)
        losses = F.binary_cross_entropy_with_logits(odds, yes, reduction="none")
        return losses if self.weight == 1 else losses * (1 + (self.weight - 1) * yes)

    def differentiate(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        odds, yes = outputs.squeeze(-1), y.to(outputs.dtype)
        delta = torch.sigmoid(odds).sub_(yes)
        if self.weight != 1:
            delta *= 1 + (self.weight - 1) * yes
        return self(outputs, y), delta.unsqueeze(-1)

    def measure_margins(self, outputs: Tensor) -> Tensor:
        return outputs - _log_odds(self.threshold)

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs.squeeze(-1) >= _log_odds(self.threshold)).long()


# --------------------------------------------------------------------------- several labels
@dataclass(frozen=True)
class MultiLabel(Loss):
    """The mean logistic loss of several labels, each of which a sample may have or not; one output per label.

    The model says yes to a label where its probability is at least `threshold`.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    @property
    def target(self) -> Target:
        return "labels"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(-1)

    def differentiate(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        delta = torch.sigmoid(outputs).sub_(y.to(outputs.dtype)).div_(outputs.shape[-1])
        return self(outputs, y), delta

    def measure_margins(self, outputs: Tensor) -> Tensor:
        return outputs - _log_odds(self.threshold)

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs >= _log_odds(self.threshold)).to(outputs.dtype)

    def judge(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (self.decide(outputs) == y).float().mean(-1)


# --------------------------------------------------------------------------- numbers
@dataclass(frozen=True)
class _Distance(Loss):
    """A loss of the distance between the one output and a number."""

    @property
    def target(self) -> Target:
        return "number"

    def count_outputs(self, names: int) -> int:
        """One."""
        return 1

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._measure(outputs.squeeze(-1) - y)

    def differentiate(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        distance = outputs.squeeze(-1) - y
        return self._measure(distance), self._slope(distance).unsqueeze(-1)

    def _measure(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def _slope(self, distance: Tensor) -> Tensor:
        """The derivative of `_measure`."""
        raise NotImplementedError

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def judge(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 1 - (self.decide(outputs) - y).square()


@dataclass(frozen=True)
class Squared(_Distance):
    """The squared error."""

    def _measure(self, distance: Tensor) -> Tensor:
        return distance.square()

    def _slope(self, distance: Tensor) -> Tensor:
        return 2 * distance


@dataclass(frozen=True)
class Absolute(_Distance):
    """The absolute error."""

    def _measure(self, distance: Tensor) -> Tensor:
        return distance.abs()

    def _slope(self, distance: Tensor) -> Tensor:
        return distance.sign()


@dataclass(frozen=True)
class Huber(_Distance):
    """Half the squared error up to a distance of `delta`, and a line from there on.

    Targets are standardised, so that `delta` counts standard deviations of the targets.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        require(self.delta > 0, "delta", "above 0", self.delta)

    def _measure(self, distance: Tensor) -> Tensor:
        far = distance.abs()
        return torch.where(far <= self.delta, distance.square() / 2, self.delta * (far - self.delta / 2))

    def _slope(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.delta, self.delta)


def _check_threshold(value: float) -> None:
    require(0 < value < 1, "threshold", "above 0 and below 1", value)


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


# --------------------------------------------------------------------------- by name
LOSSES: Registry[Loss] = Registry("loss", listed=False)  # all losses, by name


def _register(name: str, function: Callable[..., Loss]) -> None:
    LOSSES[name] = Entry(name, function, (function.__doc__ or "").strip().split("\n")[0])


_register("cross_entropy", CrossEntropy)
_register("binary", Binary)
_register("multilabel", MultiLabel)
_register("squared", Squared)
_register("absolute", Absolute)
_register("huber", Huber)

CROSS_ENTROPY = CrossEntropy()
USUAL: dict[Target, str] = {"classes": "cross_entropy", "labels": "multilabel", "number": "squared"}


def parse_loss(text: str) -> Loss:
    """The loss that a text names, such as `huber(delta=1)`.

    >>> parse_loss("huber(delta=2)"), str(parse_loss("binary(threshold=0.5)"))
    (Huber(delta=2.0), 'binary')
    """
    call = parse_one(text, "loss", "huber(delta=1)")
    entry = LOSSES.find(call.name)
    return entry.function(**entry.check(dict(call.arguments)))


WORDS: dict[Target, str] = {
    "classes": "classes (--label)",
    "number": "a number (--target with one column)",
    "labels": "several labels of 0 and 1 (--target with several columns)",
}


def check_target(loss: Loss, target: Target) -> None:
    """Refuse a loss that is not for the target that the data have."""
    if loss.target != target:
        fitting = [name for name, entry in LOSSES.items() if entry.function().target == target]
        raise EquipoiseError(
            f"Loss `{loss}` needs {WORDS[loss.target]} to predict. The data have {WORDS[target]}: use "
            f"{join_words(fitting)}, or name other columns."
        )
