"""AAggFF: weights by an online learner that is paid by the distribution of the clients' losses. Hahn et al., ICML 2024.

The server plays weights `p` and then sees responses `r`, one per client, which grow with the client's loss. It wants a
small `-log(1 + <p, r>)` over all rounds. Few clients that are always there (`silo`) are learnt with Newton steps, many
of which some are there (`device`) with steps along the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import Method, PerClient, Round, State, Weigh, Weighed, register
from equipoise.parts.minnorm import min_norm_weights
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.weights import lay_out, place_clients, shares

Response = Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"]
# Distribution -> its cumulative probability at a loss relative to the mean loss: from 0 to 1, and growing.
RESPONSES: dict[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda x: 1 - torch.exp(-x.square()),
    "exponential": lambda x: 1 - torch.exp(-x),
    "frechet": lambda x: torch.exp(-1 / x),
    "normal": lambda x: torch.special.ndtr(x - 1),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "logistic": lambda x: torch.sigmoid(x - 1),
}
ALPHA = 4.0  # how strongly Newton steps hold the weights together


def minimise_on_simplex(quadratic: Tensor, linear: Tensor, least: float) -> Tensor:
    """The weights `[n]`, non-negative and with sum one, that minimise `p'Qp/2 + <q, p>`.

    `least` is a positive lower bound of the eigenvalues of Q. On the simplex a linear term can be written as a quadratic
    one, so that these are min-norm weights of another matrix; a constant makes that matrix positive.

    >>> minimise_on_simplex(2 * torch.eye(2), torch.tensor([0.0, 1.0]), 2.0)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    return min_norm_weights(quadratic + linear + linear[:, None] + linear.square().sum() / least)


@dataclass(frozen=True)
class OnlineWeights(
    Weigh, needs=("loss",), remembers="the sum of its responses, which follow from its losses", by_columns=()
):
    """Weights `p` of all K clients by follow-the-regularised-leader on `-log(1 + <p, r>)`.

    A response `r_k` is the cumulative probability of the client's loss, relative to the mean loss of the round. Absent
    clients count as the mean response; those of the participants are weighted so that the mean over rounds is right. The
    weights of a round are the participants' shares of `p`, after the round's losses have been taken in.
    """

    setting: Literal["silo", "device"]  # Newton steps, or steps along the gradient
    response: Response  # the distribution
    released: bool = False  # as in the authors' code

    def __call__(self, round: Round, state: State) -> Weighed:
        total, place = place_clients(round, "aaggff")
        loss, silo = round.reports["loss"].double(), self.setting == "silo"
        share = len(round.clients) / total
        response = self._respond(loss) * (1 / total if silo else share)
        mean = response.mean()
        estimated = mean.expand(total).clone()
        above = (response - mean) / share
        estimated[place] = above if self.released and not silo else mean + above
        first = (1.0 if silo else share) if self.released else 1 / total
        p = lay_out(state.rows("p"), total, loss.new_tensor(first))
        slope = -estimated / (1 + (p @ estimated if silo else mean * p.sum()))
        slopes = lay_out(state.rows("slopes"), total, loss.new_zeros(())) + slope
        kept = {"slopes": slopes}
        if silo:
            curvature = lay_out(state.rows("curvature"), total, p.new_zeros(total)) + slope.outer(slope)
            anchor = lay_out(state.rows("anchor"), total, loss.new_zeros(()))
            anchor = anchor + (0.0 if self.released else (slope @ p) * slope)
            strength = total / 4
            held = ALPHA * (1 + strength if self.released else 1.0)
            quadratic = held * torch.eye(total, dtype=p.dtype) + strength * curvature
            p = minimise_on_simplex(quadratic, slopes - strength * anchor, ALPHA)
            kept |= {"curvature": curvature, "anchor": anchor}
        else:
            rate = math.sqrt(math.log(total)) / (math.sqrt(round.round + 2) * (2 + share))
            p = torch.softmax(-rate * slopes, 0)
        after = {name: PerClient(dict(enumerate(value))) for name, value in {"p": p, **kept}.items()}
        return Weighed(shares(p[place]), after, {"loss": loss, "response": response})

    def _respond(self, loss: Tensor) -> Tensor:
        mean = loss.mean()
        relative = loss / mean if mean > 0 else torch.ones_like(loss)
        found = RESPONSES[self.response](relative)
        return 1.5 - found if self.released and self.response == "normal" else found


@register(
    title="Weights by an online learner, from the distribution of the clients' losses",
    reference="Hahn, Kim, Lee, Pursuing overall welfare in federated learning through sequential decision making, ICML 2024",
)
def aaggff(
    setting: Literal["silo", "device"] = "silo",
    response: Response = "exponential",
    variant: Literal["paper", "released"] = "paper",
) -> Method:
    """Weights that an online learner finds from responses: cumulative probabilities of the losses, relative to their mean.

    `setting="silo"` is for few clients, most of which answer in every round; the server keeps a matrix of K times K numbers
    for K clients. `setting="device"` is for many clients. `response` is the distribution. `variant="released"` follows
    the authors' code: weights start with another sum, Newton steps have no anchor, the normal response *falls* with the
    loss, and in `device` clients that were chosen lose weight.
    """
    return Method(reports=(GlobalLoss(),), weigh=OnlineWeights(setting, response, variant == "released"))
