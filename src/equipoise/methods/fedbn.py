"""FedBN: batch normalisation stays with the client. Li et al., ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.method import Mark, Method, Scored, Wrap, register


@dataclass(frozen=True)
class LocalNormalisation(Wrap):
    """Makes the parameters and statistics of every batch normalisation private. Layers are found by type, not by
    name."""

    scored: Scored = "own"  # which model `accuracy` belongs to

    @property
    def scores(self) -> Scored:
        """Which model `accuracy` belongs to."""
        return self.scored

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """All tensors of batch normalisations are private."""
        found: dict[str, Mark] = {}
        for place, layer in model.named_modules():
            if isinstance(layer, _BatchNorm):
                names = [name for name, _ in (*layer.named_parameters(), *layer.named_buffers())]
                found |= {f"{place}.{name}".lstrip("."): "private" for name in names}
        return found

    def note(self, model: nn.Module) -> str | None:
        """A note if the model has no batch normalisation."""
        return None if self.marks(model) else "fedbn: the model has no batch normalisation, so this is FedAvg."


@register(
    title="Batch normalisation stays with the client",
    reference="Li et al., FedBN: federated learning on non-IID features via local batch normalization, ICLR 2021",
)
def fedbn(evaluate: Literal["personal", "averaged-personal"] = "personal") -> Method:
    """FedAvg in which the layers of batch normalisation stay with the client.

    `evaluate` says which model `accuracy` belongs to: with the client's own normalisation, or with the mean of all
    clients'. The other one is recorded as well.
    """
    return Method(wrap=(LocalNormalisation("own" if evaluate == "personal" else "mean"),))
