"""FedDG-GA: weights that grow where averaging made a client's model worse. Zhang et al., CVPR 2023.

A client's gap is its validation loss of the averaged model minus that of its own model before averaging. The averaged
model is the one that it receives in the next round, where its gap is therefore known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from equipoise.method import (
    Method,
    PerClient,
    Report,
    Round,
    State,
    Tensors,
    Trained,
    Weigh,
    Weighed,
    register,
    require,
)
from equipoise.parts.reports import mean_loss
from equipoise.parts.weights import lay_out, place_clients, shares

NEVER = torch.tensor(-2)  # in place of a round: the client has not taken part yet
EQUAL = 1e-6  # gaps that differ by less, relative to the losses, count as equal: losses have the precision of float32


@dataclass(frozen=True)
class ValidationLosses(Report, needs=("validation",), gives=("loss_valid", "loss_valid_trained")):
    """Reports `loss_valid` and `loss_valid_trained`: the losses of the received and of the trained model on validation
    data."""

    def __call__(self, trained: Trained) -> Tensors:
        after = trained.received._replace(params=trained.params, buffers=trained.buffers)
        return {
            "loss_valid": mean_loss(trained, trained.received, trained.validation),
            "loss_valid_trained": mean_loss(trained, after, trained.validation),
        }


@dataclass(frozen=True)
class GeneralisationAdjustment(
    Weigh,
    needs=("loss_valid", "loss_valid_trained"),
    remembers="its weight, and the validation loss of its last model",
    by_columns=(),
):
    """Keeps a weight per client: `a <- clip(a + d/K g / max|g|, 0, 1)`, divided by its sum, for K clients with gaps `g`.

    The step `d` falls from `step` to 0 over the run. Gaps are known of clients that also took part in the round before;
    the others keep their weights. The weights of a round are the participants' shares of `a`.
    """

    step: float  # the first step size
    centred: bool = True  # whether the mean gap is subtracted first

    def __call__(self, round: Round, state: State) -> Weighed:
        total, place = place_clients(round, "feddg_ga")
        now, before = (round.reports[name].double() for name in ("loss_valid", "loss_valid_trained"))
        a = lay_out(state.rows("a"), total, now.new_tensor(1 / total))
        trained, seen = state.rows("trained"), state.rows("seen")  # at each client's last part, and in which round
        known = torch.tensor([int(seen.get(c, NEVER)) == round.round - 1 for c in round.clients])
        if bool(known.any()):
            gap = now[known] - trained.take([c for c, is_known in zip(round.clients, known, strict=True) if is_known])
            moved = gap - gap.mean() if self.centred else gap
            largest = moved.abs().max()
            if largest > EQUAL * now.abs().max():  # otherwise the step would follow rounding errors
                a[place[known]] = (a[place[known]] + self._find_step(round) / total * moved / largest).clamp(0, 1)
                a = shares(a)
        kept = {
            "a": PerClient(dict(enumerate(a))),
            "trained": trained.put(round.clients, before),
            "seen": seen.put(round.clients, torch.full_like(place, round.round)),
        }
        return Weighed(shares(a[place]), kept, {"loss_valid": now, "loss_valid_trained": before})

    def _find_step(self, round: Round) -> float:
        """The step size for gaps of the model of the round before."""
        rounds, t = round.known("rounds", "feddg_ga"), round.round - 1
        return self.step * (1 - (t if self.centred else t - 1) / rounds)


@register(
    title="Weights that grow where averaging made a client's model worse",
    reference="Zhang, Xu, Yao, Zhang, Tian, Wang, Federated domain generalization with generalization adjustment, CVPR 2023",
)
def feddg_ga(step: float = 0.2, variant: Literal["paper", "released"] = "paper") -> Method:
    """A client gains weight if the averaged model serves its validation data worse than its own model did.

    `step` is the first step size of the weights, which falls to 0 over the run; at 0 all weights stay equal.
    `variant="released"` follows the authors' code: gaps are not centred, so that all weights may move to one side, and
    the step of the first round is larger than `step` by one round's part.
    """
    require(0 <= step <= 1, "step", "between 0 and 1", step)
    return Method(reports=(ValidationLosses(),), weigh=GeneralisationAdjustment(step, variant == "paper"))
