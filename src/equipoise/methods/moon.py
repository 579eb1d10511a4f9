"""MOON: features stay near the global model's and away from the client's previous model's. Li, He, Song, CVPR 2021."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from equipoise.method import (
    Beginning,
    ClientState,
    Local,
    Method,
    Model,
    Received,
    Tensors,
    Term,
    Trained,
    register,
    require,
)
from equipoise.parts.projection import Projection
from equipoise.parts.terms import unit


def contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, tau: float) -> Tensor:
    """`-log softmax` of the similarity with the global features against that with the previous ones, `[batch]`."""
    farther = (unit(z) * (unit(z_previous) - unit(z_global))).sum(-1)  # the difference of the two cosines
    return F.softplus(farther / tau)


@dataclass(frozen=True)
class ModelContrast(Term):
    """`mu` times the contrast; the state is the client's model after its last round."""

    mu: float
    tau: float

    def start(self, beginning: Beginning) -> list[Tensors]:
        # Before a client's first round previous and global model are the same (but for personal tensors that the server has
        # mixed for a late client): the loss is log 2, its gradient zero.
        first = _flattened(beginning.received.params, beginning.received.buffers)
        return [first for _ in beginning.clients]

    def frozen(self, received: Received, states: ClientState) -> dict[str, Model]:
        if not self.mu:
            return {}
        previous = states[self.key]
        params = {name: previous[f"parameter {name}"] for name in received.params}
        buffers = {name: previous[f"buffer {name}"] for name in received.buffers}
        return {"received": Model(received.params, received.buffers), "previous": Model(params, buffers)}

    def loss(self, local: Local) -> Tensor | None:
        if not self.mu:
            return None
        return self.mu * contrast(local.out.features, local.frozen["received"], local.frozen["previous"], self.tau)

    def finish(self, trained: Trained) -> Tensors:
        return _flattened(trained.params, trained.buffers)


def _flattened(params: Tensors, buffers: Tensors) -> Tensors:
    return {f"parameter {name}": value for name, value in params.items()} | {
        f"buffer {name}": value for name, value in buffers.items()
    }


@register(
    title="Features near the global model's, away from the client's previous model's",
    reference="Li, He, Song, Model-contrastive federated learning, CVPR 2021",
    # Its features are not normalised and its rate is high: at 5 the contrast outweighs the labels (chosen on validation data).
    per_dataset={"scanners": {"mu": 0.1}},
)
def moon(mu: float = 5.0, tau: float = 0.5, projection: int | None = None) -> Method:
    """`mu=0` is FedAvg. `projection` adds a projection head of that width, as the paper's networks have (256); without one
    the model's own features are compared, as in the domain-skew benchmarks."""
    require(mu >= 0, "mu", "at least 0", mu)
    require(tau > 0, "tau", "above 0", tau)
    require(projection is None or projection >= 1, "projection", "at least 1, or None", projection)
    return Method(wrap=(Projection(projection),) if projection else (), terms=(ModelContrast(mu, tau),))
