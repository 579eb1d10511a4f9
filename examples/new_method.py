"""A new fair method: a client counts by its samples times its loss. `docs/new_method.md` explains it."""

from dataclasses import dataclass

from equipoise import compare
from equipoise.method import Method, Round, State, Weigh, Weighed, register
from equipoise.parts.reports import GlobalLoss


@dataclass(frozen=True)
class LossTimesSamples(Weigh, needs=("samples", "loss")):
    """The loss is that of the received model on the client's training data."""

    power: float

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss"].double()
        weights = round.reports["samples"].double() * loss**self.power
        return Weighed(weights / weights.sum(), figures={"loss": loss})


@register(title="A client counts by its samples times its loss", reference="an example")
def by_loss(power: float = 1.0) -> Method:
    return Method(reports=(GlobalLoss(),), weigh=LossTimesSamples(power))


if __name__ == "__main__":
    print(compare(["fedavg", "by_loss", "by_loss(power=2)"], "scanners", seeds=1))
