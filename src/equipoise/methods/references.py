"""The two references that a fair comparison needs: what a client can do alone, and what one place with all data could."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from equipoise.method import Mark, Method, Scored, Wrap, register


@dataclass(frozen=True)
class AllPrivate(Wrap):
    """Every tensor stays with its client."""

    @property
    def scores(self) -> Scored:
        return "own"

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        return dict.fromkeys(names, "private")


@register(title="Each client trains alone, with the same number of steps", reference="reference, no paper")
def local_only() -> Method:
    """Nothing is shared: a client's model goes on from where its last round left it, and is scored on its own data."""
    return Method(wrap=(AllPrivate(),))


@register(title="FedAvg on the pooled data, in simulation only", reference="reference, no paper")
def centralised() -> Method:
    """One client that holds all training data. Not possible in a federation: it shows what separation costs."""
    return Method(is_pooled=True)
