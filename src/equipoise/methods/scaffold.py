"""SCAFFOLD: control variates correct the drift of local gradients. Karimireddy et al., ICML 2020.

A client adds `c - c_k` to every gradient. Afterwards it sets `c_k` to its mean gradient, which it finds from its update
(the paper's option II). With momentum m, a gradient enters the update `(1 - m^j) / (1 - m)` times if it is used in j
steps; so the update is divided by the sum of these factors instead of by the number of steps.
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
from equipoise.parts.reports import effective_steps
from equipoise.parts.steps import ServerRate
from equipoise.parts.weights import BySamples, Uniform


@dataclass(frozen=True)
class ControlVariates(Term, needs=("shared control",)):
    """Adds `c - c_k` to the gradient of the shared parameters, and keeps the client's control variate `c_k [G]`."""

    def start(self, beginning: Beginning) -> list[Tensors]:
        """`c_k = 0` for every client."""
        zero = torch.zeros_like(beginning.received.layout.join(beginning.received.params))
        return [{"control": zero} for _ in beginning.clients]

    def force(self, received: Received, states: ClientState) -> Tensors:
        """The correction `c - c_k`."""
        own = states[self.key]["control"]
        return received.layout.split(received.shared.get("control", torch.zeros_like(own)) - own)

    def finish(self, trained: Trained) -> Tensors:
        """The next `c_k`: `c_k - c + (theta - x) / (lr * effective steps)`, with the received and the trained model."""
        own = trained.states[self.key]["control"]
        layout, received = trained.layout, trained.received
        way = layout.join(received.params) - layout.join(trained.params)
        steps = effective_steps(trained.steps.to(way.dtype), trained.momentum)
        mean_gradient = way / (trained.lr * steps.clamp(min=1))
        return {"control": own - received.shared.get("control", torch.zeros_like(own)) + mean_gradient}


KEY = ControlVariates().key


@dataclass(frozen=True)
class ControlChange(Report, gives=("control",)):
    """Reports `control [G]`, the change of the client's control variate."""

    def __call__(self, trained: Trained) -> Tensors:
        return {"control": trained.next_states[KEY]["control"] - trained.states[KEY]["control"]}


@dataclass(frozen=True)
class ControlShare(Share, gives=("shared control",), by_columns=("control",)):
    """Sends `control [G]`: `c <- c + sum of changes / N`, for N clients.

    So `c` stays the mean of all `c_k`, those of absent clients included; or their mean by samples.
    """

    reads_updates: ClassVar[bool] = False

    by_participants: bool = False  # divide by the number of the round's participants instead of N
    by_samples: bool = False  # weigh the changes by samples

    @property
    def needs(self) -> tuple[str, ...]:
        """The changes, and the numbers of samples if these weigh them."""
        return ("control", "samples") if self.by_samples else ("control",)

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        changes = round.reports["control"]
        if self.by_samples:
            share = round.reports["samples"] / round.known("total_samples", "scaffold(weights='samples')")
            change = share.to(changes.dtype) @ changes
        else:
            count = len(round.clients) if self.by_participants else round.known("num_clients", "scaffold")
            change = changes.sum(0) / count
        control = state.tensor("control", torch.zeros_like(change)) + change
        return Sent({"control": control}, {"control": control})


@register(
    title="Control variates against the drift of local training",
    reference="Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020",
    # The mean control is one round old. With momentum 0.9 a client moves along it by about 28 learning rates, which at
    # the rate 0.05 is too far: training breaks down for some seeds.
    per_dataset={"scanners": {"momentum": False}},
    ranges={"momentum": (True, False)},
    side="client",
)
def scaffold(
    server_lr: float | None = None,
    momentum: bool = True,
    variant: Literal["paper", "released"] = "paper",
    weights: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """Every local gradient is corrected by `c - c_k`: the mean control variate minus the client's own.

    The optimizer is SGD. `momentum=False` trains without momentum, as the paper does; otherwise the run's momentum is
    kept, and its effect removed from the control variates. `server_lr` multiplies the direction; it is 1 by default.
    `variant="released"` follows the code of a public benchmark: no momentum, no weight decay, a `server_lr` of 0.25,
    and a mean control variate over the round's participants. `weights="samples"` averages updates and control variates by
    samples, as FLamby does.
    """
    require(variant == "paper" or weights == "uniform", "weights", "'uniform' with variant='released'", weights)
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
        weigh=BySamples() if weights == "samples" else Uniform(),
        step=(ServerRate(rate),) if rate != 1 else (),
        share=(ControlShare(by_participants=released, by_samples=weights == "samples"),),
        training=tuple(demands.items()),
    )
