"""Parts of methods as a researcher might write them, in a module that worker processes can import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.method import (
    Local,
    Merged,
    PerClient,
    Report,
    Round,
    Select,
    Selected,
    Sent,
    Share,
    State,
    Step,
    Stepped,
    Tensors,
    Term,
    Trained,
    Turnout,
    Weighed,
    define_report,
)
from equipoise.parts.merges import WeightedSum
from equipoise.parts.weights import BySamples

define_report("update_size", "[m]", "largest entry of the client's update", drives_weight=True)
define_report("worst_loss", "[m]", "largest loss of a training sample", is_loss=True)


@dataclass(frozen=True)
class SharesSpread(Share, gives=("shared spread",)):
    """Looks at single updates, and says nothing about it."""

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        return Sent({"spread": round.updates.shaped.std(0).norm() + round.reported.abs().max()})


@dataclass(frozen=True)
class PulledBySpread(Term, needs=("shared spread",)):
    """A pull whose strength is what the server sent: a wrong number there shows in the model."""

    def loss(self, local: Local) -> Tensor | None:
        spread = local.received.shared.get("spread")
        return None if spread is None else spread * 0.1 * local.out.features.square().mean(1)


@dataclass(frozen=True)
class RemembersLast(Term):
    """Keeps the last loss from its first round on, without a `start`."""

    def loss(self, local: Local) -> Tensor | None:
        last = local.states.get(self.key)
        return None if last is None else 0.05 * last["loss"] * local.out.features.square().mean(1)

    def finish(self, trained: Trained) -> Tensors:
        before = trained.states.get(self.key, {}).get("rounds", torch.zeros(()))
        return {"loss": trained.loss_local, "rounds": before + 1}


@dataclass(frozen=True)
class GrowingState(Term):
    """Keeps a longer tensor every round."""

    def finish(self, trained: Trained) -> Tensors:
        before = trained.states.get(self.key, {}).get("history", torch.zeros(0))
        return {"history": torch.cat([before, trained.loss_local[None]])}


@dataclass(frozen=True)
class CountsRounds(Step):
    """A step whose name a share has, too."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction, {"count": state.tensor("count", torch.tensor(0.0)) + 1})


class OfShare:
    """Another part called `CountsRounds`, in another role."""

    @dataclass(frozen=True)
    class CountsRounds(Share):
        reads_updates: ClassVar[bool] = False

        def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
            count = state.tensor("count", torch.tensor(100.0)) + 10
            return Sent({"count": count}, {"count": count})


@dataclass(frozen=True)
class Guard(Step):
    """A part that has the name of the guard."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction, {"loss": state.tensor("loss", torch.tensor(0.0)) + 1})


@dataclass(frozen=True)
class LargestAlone(BySamples):
    """Derives from FedAvg's weights and overrides the rule alone: the largest client gets everything."""

    rank: ClassVar[int] = 2

    def __call__(self, round: Round, state: State) -> Weighed:
        samples = round.reports["samples"].double()
        return Weighed((samples == samples.max()).double() / (samples == samples.max()).sum())


@dataclass(frozen=True)
class Reversed(WeightedSum):
    """Derives from the weighted sum and overrides the rule alone."""

    rank: ClassVar[int] = 2

    def __call__(self, round: Round, weights: Tensor) -> Merged:
        return Merged(-round.updates.combine(weights))


@dataclass(frozen=True)
class KeepsRows(Step, remembers="its last update"):
    """Adds a tenth of each client's last update to the direction; it keeps rows of the round as they are."""

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        last: PerClient = state.rows("last")
        for client in last:
            direction = direction + 0.1 * last[client]
        return Stepped(direction, {"last": last.put(round.clients, round.reported)})


@dataclass(frozen=True)
class SaysItDoesNotLook(Step):
    """Looks at single updates although it says that it does not."""

    reads_updates: ClassVar[bool] = False

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        return Stepped(direction + round.reported.mean(0))


@dataclass(frozen=True)
class UpdateSize(Report, gives=("update_size",)):
    """A report of one's own."""

    runs_model: ClassVar[bool] = False

    def __call__(self, trained: Trained) -> Tensors:
        moved = trained.layout.join(trained.params) - trained.layout.join(trained.received.params)
        return {"update_size": moved.abs().max()}


@dataclass(frozen=True)
class BySize(BySamples, needs=("update_size",)):
    """Weights by that report."""

    rank: ClassVar[int] = 2

    def raw(self, reports: dict[str, Tensor]) -> Tensor:
        return reports["update_size"].double()

    def __call__(self, round: Round, state: State) -> Weighed:
        size = self.raw(round.reports)
        return Weighed(size / size.sum(), figures={"update_size": size})


@dataclass(frozen=True)
class SendsRow(Share):
    """Sends the first client's update down, once: as it came, without a copy."""

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        row = state.tensor("first", round.reported[0])
        return Sent({"row": row}, {"first": row})


@dataclass(frozen=True)
class WidestGap(Select):
    """The clients with the largest gaps take part, for which all are asked in every round."""

    asks = ("gap",)

    def __call__(self, turnout: Turnout, state: State) -> Selected:
        gaps = dict(zip(turnout.candidates, turnout.reports["gap"].tolist(), strict=True))
        return Selected(sorted(gaps, key=gaps.__getitem__)[-turnout.places :], others="a smaller gap", values=gaps)
