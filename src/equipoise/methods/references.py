"""Two references for comparisons: every client trains alone, and one client trains on all data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from equipoise.method import Mark, Method, Scored, Wrap, register


@dataclass(frozen=True)
class AllPrivate(Wrap):
    """Makes every tensor of the model private."""

    @property
    def scores(self) -> Scored:
        """Each client's own model."""
        return "own"

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """All tensors are private."""
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        return dict.fromkeys(names, "private")


@register(title="Each client trains alone, with the same number of steps", reference="reference, no paper")
def local_only() -> Method:
    """Nothing is shared. Each client continues with its own model of the last round, which is scored on its own
    data."""
    return Method(wrap=(AllPrivate(),))


@register(title="FedAvg on the pooled data, in simulation only", reference="reference, no paper")
def centralised() -> Method:
    """One client holds all training data. This is possible in simulation only, and shows the cost of separate data."""
    return Method(is_pooled=True)
