"""AFL, agnostic federated learning: weights that climb towards the clients with the largest losses.

Mohri, Sivek and Suresh, ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import Method, PerClient, Range, Round, State, Step, Stepped, Weigh, Weighed, register, require
from equipoise.parts.reports import GlobalLoss, TrainedLoss
from equipoise.parts.weights import shares

IMAGES = ("scanners", "digits", "office-caltech", "pacs", "dirty-mnist", "cifar10", "mnist-shards")  # image data
FLOOR = 1e-3  # the smallest weight in the code of a public benchmark


def onto_simplex(values: Tensor) -> Tensor:
    """The point nearest to `values [n]` whose entries are non-negative and sum to one.

    >>> onto_simplex(torch.tensor([0.5, 0.8, -0.1]))
    tensor([0.3500, 0.6500, 0.0000])
    """
    values = values - values.max()  # the result is the same, without loss of precision for large values
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1).to(values)
    last = int((ordered > excess).sum()) - 1
    return (values - excess[last]).clamp(min=0)


@dataclass(frozen=True)
class SimplexAscent(Weigh, needs=("loss",), remembers="its weight", by_columns=()):
    """Keeps a weight per client and moves it along the losses: `lambda <- projection of (lambda + gamma F)` on the
    simplex.

    The losses of absent clients are not known. Those of the m participants count `N/m` times for N clients, which is
    right on average. The weights of a round are the participants' shares of `lambda`.
    """

    gamma: float  # step size of the ascent
    before: bool = False  # whether the round's weights are taken after the ascent

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss"].double()
        known = state.rows("lambda")
        seen = sorted({*known, *round.clients})
        total = max(len(seen), round.setting.num_clients or 0)
        unseen = loss.new_tensor(1 / total) if known.default is None else known.default
        now = torch.stack([known.get(c, unseen) for c in seen] + [unseen] * (total - len(seen)))
        place = torch.tensor([seen.index(c) for c in round.clients], device=loss.device)
        climbed = onto_simplex(now.index_add(0, place, self.gamma * total / len(loss) * loss))
        used = shares((climbed if self.before else now)[place])
        after = PerClient(dict(zip(seen, climbed, strict=False)), climbed[-1] if total > len(seen) else unseen)
        return Weighed(used, {"lambda": after}, figures={"loss": loss, "lambda": now[place]})


@dataclass(frozen=True)
class ForgetfulAscent(Weigh, needs=("loss_trained",), by_columns=()):
    """AFL as in the code of a public benchmark, without a memory.

    Every round starts from equal weights, moves them along the losses of the *trained* models, and uses the result. No
    weight falls below a floor.
    """

    gamma: float  # step size of the ascent

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss_trained"].double()
        climbed = onto_simplex(1 / len(loss) + self.gamma * loss)
        return Weighed(shares(climbed.clamp(min=FLOOR)), figures={"loss_trained": loss})


@dataclass(frozen=True)
class MeanOfRounds(Step, by_columns=("mean",)):
    """Has the mean of all rounds' models scored. The direction is not changed."""

    comes_last: ClassVar[int] = 2
    reads_updates: ClassVar[bool] = False

    @property
    def scored_iterate(self) -> str | None:
        """The scored model in words."""
        return "mean of the rounds' models"

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        before, count = state.tensor("mean", round.theta), state.tensor("count", torch.tensor(0))
        share = 1 / (int(count) + 1)  # the weight of this round's model in the mean
        mean = torch.lerp(before, round.theta, share).add_(direction, alpha=share)
        return Stepped(direction, {"mean": mean, "count": count + 1}, mean)


@register(
    title="Weights that climb towards the clients with the largest losses",
    reference="Mohri, Sivek, Suresh, Agnostic federated learning, ICML 2019",
    # The mean of all models comes from the theory of convex problems. For a network, the first models would spoil it.
    per_dataset={name: {"evaluate": "last"} for name in IMAGES},
    ranges={"gamma": Range(0.001, 1.0, log=True), "evaluate": ("mean", "last")},
    side="server",
)
def afl(
    gamma: float = 0.01,
    lambda_first: bool = False,
    evaluate: Literal["mean", "last"] = "mean",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """Weights move along the clients' losses, `lambda <- projection of (lambda + gamma F)` on the simplex.

    `gamma` is the step size; at 0 the weights stay equal. `lambda_first` moves the weights before they are used, not
    after. `evaluate` says which model is scored: the mean of all rounds' models, as in the theory, or the last one.
    `variant="released"` follows the code of a public benchmark: weights without a memory, from the losses of the
    trained models, with a floor of 0.001; the last model is scored.
    """
    require(gamma >= 0, "gamma", "at least 0", gamma)
    if variant == "released":
        return Method(reports=(TrainedLoss(),), weigh=ForgetfulAscent(gamma))
    steps = (MeanOfRounds(),) if evaluate == "mean" else ()
    return Method(reports=(GlobalLoss(),), weigh=SimplexAscent(gamma, lambda_first), step=steps)
