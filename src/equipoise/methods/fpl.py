"""FPL, federated prototype learning: a contrast with clusters of each class's prototypes, and a pull to their mean.

Huang et al., CVPR 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.method import Local, Method, Round, Sent, Share, State, Term, register, require
from equipoise.parts.prototypes import LAST_PROTOTYPES, ClassMeans, last_prototypes
from equipoise.parts.terms import unit


def finch(points: Tensor) -> Tensor:
    """Cluster labels `[n]` of `points [n, F]` by FINCH (Sarfraz et al., CVPR 2019), with cosine similarity.

    Each point is linked to its nearest neighbour, and linked points form a cluster. The same is then done with the
    means of the clusters, again and again. Of these partitions the coarsest with more than one cluster is used, or the
    first if it has only one.

    >>> finch(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
    tensor([0, 0, 1, 1])
    """
    labels = torch.arange(len(points), device=points.device)
    groups = len(points)
    while groups > 1:
        joined = _linked(cluster_means(points, labels))
        fewer = int(joined.max()) + 1
        if fewer == 1 and groups < len(points):
            break
        labels, groups = joined[labels], fewer
    return labels


def _linked(points: Tensor) -> Tensor:
    """The connected components of the graph in which each point is linked to its nearest neighbour, `[n]`."""
    from scipy.sparse import coo_array  # a slow import, so only where it is needed
    from scipy.sparse.csgraph import connected_components

    likeness = (unit(points.double()) @ unit(points.double()).T).fill_diagonal_(-torch.inf)
    nearest = likeness.argmax(1).cpu().numpy()
    n = len(points)
    graph = coo_array(([1] * n, (range(n), nearest)), shape=(n, n))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long().to(points.device)


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """The mean of the points of each cluster, `[clusters, F]`."""
    return torch.stack([points[labels == label].mean(0) for label in range(int(labels.max()) + 1)])


def cluster_contrast(features: Tensor, clusters: Tensor, classes: Tensor, y: Tensor, tau: float) -> Tensor:
    """`-log(sum over own clusters of exp(cos / tau) / sum over all clusters of exp(cos / tau))`, `[batch]`.

    `cos` is the cosine between a feature and a cluster's prototype, `clusters [P, F]`; a sample's own clusters are
    those of its class, `classes [P]`. Zero for a sample whose class has no prototype.
    """
    logits = unit(features) @ unit(clusters).mT / tau
    own = classes[None] == y[:, None]
    mine = torch.logsumexp(torch.where(own, logits, -1e4), 1)  # finite without own clusters: no NaN in the gradient
    return torch.where(own.any(1), torch.logsumexp(logits, 1) - mine, 0.0)


@dataclass(frozen=True)
class ClusterPrototypes(
    Share,
    needs=("prototypes", "prototype_counts"),
    gives=("shared cluster prototypes",),
    remembers=LAST_PROTOTYPES,
    by_columns=(),
):
    """Sends the clusters of all clients' prototypes.

    `cluster_prototypes [P, F]` are the means of the clusters, `cluster_classes [P]` their classes, and
    `unbiased_prototypes [C, F]` the mean of each class's clusters.
    """

    reads_updates: ClassVar[bool] = False

    def __call__(self, round: Round, theta: Tensor, state: State) -> Sent:
        prototypes, counts, memory = last_prototypes(round, state)
        clusters, classes = [], []
        unbiased = torch.zeros_like(prototypes[0])
        for c in range(prototypes.shape[1]):
            points = prototypes[counts[:, c] > 0, c]
            if len(points):
                means = cluster_means(points, finch(points))
                unbiased[c] = means.mean(0)
                clusters.append(means)
                classes.append(torch.full((len(means),), c, device=means.device))
        sent = {
            "cluster_prototypes": torch.cat(clusters),
            "cluster_classes": torch.cat(classes),
            "unbiased_prototypes": unbiased,
        }
        return Sent(dict(sent), memory)


@dataclass(frozen=True)
class ClusterContrast(Term, needs=("shared cluster prototypes",)):
    """Adds the contrast with cluster prototypes, and the mean squared difference from the unbiased prototype of the
    class."""

    tau: float  # temperature of the contrast

    def loss(self, local: Local) -> Tensor | None:
        """The losses `[batch]`; None in the first round, when there are no prototypes."""
        shared = local.received.shared
        if "cluster_prototypes" not in shared:
            return None
        features, classes = local.out.features, shared["cluster_classes"]
        pull = (features - shared["unbiased_prototypes"][local.y]).square().mean(1)
        known = (classes[None] == local.y[:, None]).any(1)
        return cluster_contrast(features, shared["cluster_prototypes"], classes, local.y, self.tau) + known * pull


@register(
    title="A contrast with clusters of each class's prototypes, and a pull to their mean",
    reference="Huang et al., Rethinking federated learning with domain shift: a prototype view, CVPR 2023",
    # A temperature of 0.02 makes gradients fifty times as long: too long at the rate 0.05. Chosen on validation data.
    per_dataset={"scanners": {"tau": 0.1}},
)
def fpl(tau: float = 0.02) -> Method:
    """Adds to the local loss a contrast with clusters of all clients' prototypes, and a pull to the mean of the
    clusters.

    `tau` is the temperature of the contrast: 0.02 is the authors' default, and a later benchmark uses 0.2.
    """
    require(tau > 0, "tau", "above 0", tau)
    return Method(terms=(ClusterContrast(tau),), reports=(ClassMeans(),), share=(ClusterPrototypes(),))
