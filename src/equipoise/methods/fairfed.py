"""FairFed: weights that favour clients whose gap between groups is like that of the whole federation.

Ezzeldin, Yan, He, Ferrara and Avestimehr, AAAI 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.method import Method, PerClient, Round, State, Weigh, Weighed, register, require
from equipoise.parts.groups import GroupCounts
from equipoise.parts.weights import shares

Metric = Literal["equal_opportunity", "demographic_parity"]


def signed_gap(counts: Tensor, metric: Metric) -> Tensor:
    """The rate of group 1 minus that of group 0, from counts `[..., 2, 2, 2]` by group, truth and answer.

    NaN where a group has no sample to count among. The rate is that of true positives, or that of positive answers.

    >>> signed_gap(torch.tensor([[[30., 10], [10, 30]], [[8, 2], [6, 4]]]), "equal_opportunity")
    tensor(-0.3500)
    """
    among = counts[..., 1, :] if metric == "equal_opportunity" else counts.sum(-2)
    rate = among[..., 1] / among.sum(-1)
    return rate[..., 1] - rate[..., 0]


def find_distances(counts: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """How far each client's gap is from the pooled one, `[m]`, and the pooled one, from counts `[m, 2, 2, 2]`.

    Where one of the two is not defined, the accuracies are compared instead.
    """
    whole = signed_gap(counts.sum(0), metric)
    right = counts.diagonal(dim1=-2, dim2=-1).sum((-2, -1))
    accuracy, total = right / counts.sum((-3, -2, -1)), right.sum() / counts.sum()
    distance = (signed_gap(counts, metric) - whole).abs()
    return torch.where(distance.isnan(), (accuracy - total).abs(), distance), whole


@dataclass(frozen=True)
class NearGlobalGap(Weigh, needs=("samples", "group_counts", "two groups"), remembers="its weight", by_columns=()):
    """Lowers the weights of clients whose gap between two groups differs more than on average from the pooled one."""

    beta: float
    metric: Metric
    form: Literal["additive", "exp"]

    def __call__(self, round: Round, state: State) -> Weighed:
        counts, samples = (round.reports[name].double() for name in ("group_counts", "samples"))
        distance, whole = find_distances(counts, self.metric)
        figures = {"gap": signed_gap(counts, self.metric), "distance": distance, "pooled gap": whole}
        if self.form == "exp":
            return Weighed(shares(samples * torch.exp(-self.beta * distance)), figures=figures)
        known = state.rows("weight")
        total = round.setting.total_samples or float(samples.sum())
        before = torch.stack([known.get(c, n / total) for c, n in zip(round.clients, samples, strict=True)])
        after = (before - self.beta * (distance - distance.mean())).clamp(min=0)
        used = shares(after) if after.sum() > 0 else shares(samples)
        return Weighed(used, {"weight": PerClient(known).put(round.clients, after)}, figures)


@register(
    title="Weights by how near a client's gap between groups is to the pooled one",
    reference="Ezzeldin et al., FairFed: enabling group fairness in federated learning, AAAI 2023",
)
def fairfed(
    beta: float = 1.0, metric: Metric = "equal_opportunity", form: Literal["additive", "exp"] = "additive"
) -> Method:
    """The weight of a client falls by `beta` times how much further than average its gap is from the pooled one.

    Gaps are signed differences of two groups, at the received model, on training data: of true positive rates
    (`metric="equal_opportunity"`) or of positive answers (`"demographic_parity"`). Weights begin with the shares of
    samples, and are remembered; `form="exp"` has no memory: samples times `exp(-beta * distance)`. With `beta=0` it is
    FedAvg. It lowers the pooled gap only together with something that lowers gaps at clients, such as `fedfb`.
    """
    require(beta >= 0, "beta", "at least 0", beta)
    return Method(reports=(GroupCounts(),), weigh=NearGlobalGap(beta, metric, form))
