"""MOON, model contrast: features stay near the global model's and away from those of the client's previous model.

Li, He and Song, CVPR 2021.
"""

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
    Range,
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
    """`-log(e^(cos(z, z_global)/tau) / (e^(cos(z, z_global)/tau) + e^(cos(z, z_previous)/tau)))`, `[batch]`.

    All features are `[batch, width]`.
    """
    farther = (unit(z) * (unit(z_previous) - unit(z_global))).sum(-1)  # the difference of the two cosines
    return F.softplus(farther / tau)


@dataclass(frozen=True)
class ModelContrast(Term):
    """Adds `mu` times the contrast between features of the global and of the client's previous model.

    The state is the client's model after its last round.
    """

    mu: float  # weight of the term
    tau: float  # temperature of the contrast

    def start(self, beginning: Beginning) -> list[Tensors]:
        """The received model: it stands for the previous one in a client's first round."""
        # Previous and global model are then the same (except for personal tensors that the server has mixed for a
        # client which joins late), so that the loss is log 2 and its gradient zero.
        first = _flattened(beginning.received.params, beginning.received.buffers)
        return [first for _ in beginning.clients]

    def frozen(self, received: Received, states: ClientState) -> dict[str, Model]:
        """The received model and the client's previous one."""
        if not self.mu:
            return {}
        previous = states[self.key]
        params = {name: previous[f"parameter {name}"] for name in received.params}
        buffers = {name: previous[f"buffer {name}"] for name in received.buffers}
        return {"received": Model(received.params, received.buffers), "previous": Model(params, buffers)}

    def loss(self, local: Local) -> Tensor | None:
        """The weighted losses `[batch]`."""
        if not self.mu:
            return None
        return self.mu * contrast(local.out.features, local.frozen["received"], local.frozen["previous"], self.tau)

    def finish(self, trained: Trained) -> Tensors:
        """The trained model."""
        return _flattened(trained.params, trained.buffers)


def _flattened(params: Tensors, buffers: Tensors) -> Tensors:
    return {f"parameter {name}": value for name, value in params.items()} | {
        f"buffer {name}": value for name, value in buffers.items()
    }


@register(
    title="Features near the global model's, away from the client's previous model's",
    reference="Li, He, Song, Model-contrastive federated learning, CVPR 2021",
    # Features are not normalised and the rate is high: at 5 the contrast outweighs the labels. Chosen on validation
    # data.
    per_dataset={"scanners": {"mu": 0.1}},
    ranges={"mu": Range(0.01, 5.0, log=True), "tau": Range(0.1, 1.0)},
    side="client",
)
def moon(mu: float = 5.0, tau: float = 0.5, projection: int | None = None) -> Method:
    """Adds a contrast to the local loss: features near the global model's, and away from the client's previous model's.

    `mu` is the weight of the contrast, and `tau` its temperature; `mu=0` is FedAvg. `projection` adds a projection head
    of that width, as the paper's networks have (256). Without one the model's own features are compared, as in the
    domain-skew benchmarks.
    """
    require(mu >= 0, "mu", "at least 0", mu)
    require(tau > 0, "tau", "above 0", tau)
    require(projection is None or projection >= 1, "projection", "at least 1, or None", projection)
    return Method(wrap=(Projection(projection),) if projection else (), terms=(ModelContrast(mu, tau),))
