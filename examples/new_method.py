"""A new fair method: only the worst-off share of the clients counts. `docs/new_method.md` explains it."""

from dataclasses import dataclass

from equipoise import Method, compare, register
from equipoise.parts.reports import GlobalLoss
from equipoise.roles import Weigh
from equipoise.types import Round, State, Weighed


@dataclass(frozen=True)
class WorstOff(Weigh):
    share: float
    needs = ("loss",)  # of the received model, on each client's training data

    def __call__(self, round: Round, state: State) -> Weighed:
        loss = round.reports["loss"].double()
        count = max(1, int(self.share * len(loss)))
        chosen = (loss >= loss.topk(count).values[-1]).double()
        return Weighed(chosen / chosen.sum(), figures={"loss": loss})


@register(title="The mean over the clients with the largest losses", reference="an example")
def worst_off(share: float = 0.5) -> Method:
    return Method(reports=(GlobalLoss(),), weigh=WorstOff(share))


if __name__ == "__main__":
    print(compare(["fedavg", "worst_off(share=0.3)"], "scanners", seeds=1, rounds=10))
