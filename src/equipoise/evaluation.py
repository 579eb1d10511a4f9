"""Scores of the current model at every client. Nothing is averaged over clients here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.data.federation import Federation, Split
from equipoise.method import Method
from equipoise.metrics import auc
from equipoise.round import BUFFERS, PRIVATE
from equipoise.task import Task
from equipoise.types import ClientState, Server, Tensors


@dataclass(frozen=True)
class Score:
    """One figure of one client."""

    client: str
    domain: str
    split: str
    metric: str
    value: float
    samples: int


def scored_model(method: Method, task: Task) -> str:
    """Which model is evaluated, in words for the manifest."""
    if not _has_own(method, task):
        return "global"
    if "local" in {task.policies[name] for name in task.policies if name not in task.private_buffers}:
        return "personal"
    return {"own": "personal", "mean": "averaged-personal", "domain": "averaged-personal by domain"}[_filling(method)]


def evaluate(
    method: Method,
    task: Task,
    server: Server,
    states: Mapping[int, ClientState],
    federation: Federation,
    splits: Sequence[Split] = ("test",),
) -> list[Score]:
    """Scores of every client that has samples in a split. Clients that share a test set share the work."""
    theta = server.evaluated if server.evaluated is not None else server.theta
    params = {**task.initial_params, **task.layout.split(theta.to(task.device))}
    buffers = {name: value.to(task.device) for name, value in server.buffers.items()}
    found: list[Score] = []
    for split in splits:
        holders = [(k, c.split(split)) for k, c in enumerate(federation.clients) if len(c.split(split))]
        if not _has_own(method, task) or method.pooled:
            scores = _scores_of_one_model(task, params, buffers, [index for _, index in holders])
        else:
            scores = [
                task.scores(*_own_model(method, task, params, buffers, states, k), index.to(task.device))
                for k, index in holders
            ]
        for (k, index), values in zip(holders, scores, strict=True):
            client = federation.clients[k]
            for metric, value in _figures(values, federation.y[index]).items():
                found.append(Score(client.name, client.domain or client.name, split, metric, value, len(index)))
    return found


def _figures(values: Mapping[str, Tensor], y: Tensor) -> dict[str, float]:
    """One client's figures from what is known of each of its samples: means, and the AUC where there are margins."""
    figures = {metric: float(value.double().mean()) for metric, value in values.items() if metric != "margin"}
    if "margin" in values and len(y.unique()) == 2:  # of a single class there is none
        figures["auc"] = auc(values["margin"].cpu(), y.cpu())
    return figures


def _has_own(method: Method, task: Task) -> bool:
    """Whether clients are scored with different models."""
    kept = {name for name, policy in task.policies.items() if policy == "local"} - task.private_buffers
    return bool(kept) or (bool(task.private or task.private_buffers) and _filling(method) != "unused")


def _filling(method: Method) -> str:
    """How private tensors are filled: as the wrap that leaves most to the client says."""
    fillings = {wrap.scores for wrap in method.wrap}
    return next((filling for filling in ("own", "domain", "mean") if filling in fillings), "unused")


def _scores_of_one_model(
    task: Task, params: Tensors, buffers: Tensors, indices: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """All test sets in one pass; a set that several clients share is scored once."""
    distinct = {id(index): index for index in indices}
    if not distinct:
        return []
    sizes = [len(index) for index in distinct.values()]
    if task.evaluates_in_batches:  # statistics of a batch must not mix clients
        parts = {key: task.scores(params, buffers, index.to(task.device)) for key, index in distinct.items()}
    else:
        whole = task.scores(params, buffers, torch.cat(list(distinct.values())).to(task.device))
        split = {metric: torch.split(value, sizes) for metric, value in whole.items()}
        parts = {key: {metric: split[metric][i] for metric in split} for i, key in enumerate(distinct)}
    return [parts[id(index)] for index in indices]


def _own_model(
    method: Method, task: Task, params: Tensors, buffers: Tensors, states: Mapping[int, ClientState], client: int
) -> tuple[Tensors, Tensors]:
    """The model of one client: shared tensors, and private ones as the method says they are filled."""
    filling = _filling(method)
    if filling == "mean":
        sources = list(range(len(task.federation)))
    elif filling == "domain":
        domain = task.federation.clients[client].domain
        sources = [k for k, c in enumerate(task.federation.clients) if c.domain == domain]
    else:
        sources = [client]

    def mean(key: str, among: Sequence[int], names: Collection[str]) -> Tensors:
        seen = [states[k][key] for k in among if key in states.get(k, {})]
        if not seen:
            return {}
        return {
            name: torch.stack([s[name].double() for s in seen]).mean(0).to(seen[0][name].dtype).to(task.device)
            for name in seen[0]
            if name in names
        }

    kept = set(task.policies) - task.private_buffers
    own_buffers = mean(BUFFERS, [client], kept) | mean(BUFFERS, sources, task.private_buffers)
    return {**params, **mean(PRIVATE, sources, task.private)}, {**buffers, **own_buffers}
