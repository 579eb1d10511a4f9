"""SCAFFOLD: control variates correct the drift of local gradients. Karimireddy et al., ICML 2020.

A client corrects every gradient by `c - c_k`, and afterwards sets `c_k` to the mean gradient that its way amounts to (the
paper's option II). With momentum m a gradient counts `(1 - m^j) / (1 - m)` times when j steps follow it, itself included:
the way is divided by the sum of these counts instead of by the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.method import (
    Beginning,
    ClientState,
    Method,
    Received,
    Report,
    Round,
    Sent,
    Share,
    State,
    Tensors,
    Term,
    Trained,
    Value,
    register,
    require,
)
from equipoise.parts.steps import ServerRate
from equipoise.parts.weights import Uniform


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """How often a constant gradient is contained in the way of this many steps, in units of the learning rate.

    >>> effective_steps(torch.tensor([2.0, 2.0]), 0.9), effective_steps(torch.tensor(2.0), 0.0)
    (tensor([2.9000, 2.9000]), tensor(2.))
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True)
class ControlVariates(Term, needs=("shared control",)):
    """The corrected gradient, and the client's own control variate `c_k [G]`. Without buffers: parameters only."""

    def start(self, beginning: Beginning) -> list[Tensors]:
        zero = torch.zeros_like(beginning.received.layout.join(beginning.received.params))
        return [{"control": zero} for _ in beginning.clients]

    def force(self, received: Received, states: ClientState) -> Tensors:
        own = states[self.key]["control"]
        return received.layout.split(received.shared.get("control", torch.zeros_like(own)) - own)

    def finish(self, trained: Trained) -> Tensors:
        own = trained.states[self.key]["control"]
        layout, received = trained.layout, trained.received
        way = layout.join(received.params) - layout.join(trained.params)
        steps = effective_steps(trained.steps.to(way.dtype), trained.momentum)
        mean_gradient = way / (trained.lr * steps.clamp(min=1))
        return {"control": own - received.shared.get("control", torch.zeros_like(own)) + mean_gradient}


KEY = ControlVariates().key


@dataclass(frozen=True)
class ControlChange(Report, gives=("control",)):
    """`control`: by how much the client's control variate changed."""

    def __call__(self, trained: Trained) -> Tensors:
        return {"control": trained.next_states[KEY]["control"] - trained.states[KEY]["control"]}


@dataclass(frozen=True)
class ControlShare(Share, needs=("control",), gives=("shared control",)):
    """`c <- c + sum of changes / N`, N being all clients: so `c` stays the mean of all `c_k`, absent clients included."""

    reads_updates: ClassVar[bool] = False

    by_participants: bool = False  # divide by the round's participants instead

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        change = round.reports["control"].sum(0)
        count = len(round.clients) if self.by_participants else round.known("num_clients", "scaffold")
        control = state.tensor("control", torch.zeros_like(change)) + change / count
        return Sent({"control": control}, {"control": control})


@register(
    title="Control variates against the drift of local training",
    reference="Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020",
    # The mean control is a round old, and with momentum 0.9 a client follows it for about 28 learning rates: at 0.05 that
    # is too far, and some seeds break down.
    per_dataset={"scanners": {"momentum": False}},
)
def scaffold(
    server_lr: float | None = None, momentum: bool = True, variant: Literal["paper", "released"] = "paper"
) -> Method:
    """Trains with SGD. `momentum=False` trains without momentum, as the paper; otherwise the run's is kept, and divided out
    of the control variates. `variant="released"` follows a public benchmark's code: no momentum, no weight decay, `server_lr`
    0.25, and the mean control taken over the round's participants. `server_lr` is 1 otherwise."""
    released = variant == "released"
    rate = (0.25 if released else 1.0) if server_lr is None else server_lr
    require(rate > 0, "server_lr", "above 0", rate)
    demands: dict[str, Value] = {"optimizer": "SGD"}
    if released or not momentum:
        demands["momentum"] = 0.0
    if released:
        demands["weight_decay"] = 0.0
    return Method(
        terms=(ControlVariates(),),
        reports=(ControlChange(),),
        weigh=Uniform(),
        step=(ServerRate(rate),) if rate != 1 else (),
        share=(ControlShare(by_participants=released),),
        training=tuple(demands.items()),
    )
