"""Scores of the current model at every client. They are not averaged over clients here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.clients import Client, Split
from equipoise.data.federation import Federation, find_scored
from equipoise.groups import Tally, name_counts
from equipoise.losses import Loss
from equipoise.method import Method
from equipoise.metrics import METRICS, UNSEEN, measure_errors
from equipoise.parts.groups import POSITIVE
from equipoise.parts.weights import shares
from equipoise.roles import Scored
from equipoise.rounds.client import BUFFERS, PRIVATE
from equipoise.rounds.server import weighted_mean
from equipoise.task import Task
from equipoise.types import PERSONAL, ClientState, PerClient, Server, Tensors

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
SCORED: tuple[Split, ...] = ("test", "validation", "train")  # the data on which a run scores its model after a round

# The names of the models that can be scored, in records and manifests.
WORDS: dict[Scored, str] = {
    "own": "personal",
    "mean": "averaged-personal",
    "domain": "averaged-personal by domain",
    "global": "global",
}


@dataclass(frozen=True)
class Score:
    """One score of one client.

    The metrics `accuracy` (`explained`, where numbers are predicted) and `loss` belong to the model that the method
    scores. Those of other models of the same run have longer names, such as `accuracy of the averaged-personal model`.
    """

    client: str  # its name
    domain: str  # the client's own name if it has no domain
    split: str  # `test`, `validation` or `train`; `unseen` for a client that is held out
    metric: str  # `accuracy` or `explained`, `loss`, `auc` ...
    value: float
    samples: int  # how many samples the value rests on


class Keepers:
    """Who keeps the clients' states, for means over clients. Here all are kept by this process."""

    def keeps(self, client: int) -> bool:
        """Whether this process keeps the client's state."""
        return True

    def add_up(self, tensors: Tensors) -> Tensors:
        """Sums over the clients of all processes, from those over this one's; of integers the largest. All processes must
        ask for it."""
        return tensors


ONE_KEEPER = Keepers()


def name_scored_model(method: Method, task: Task) -> str:
    """The model that `accuracy` belongs to, in words for the manifest."""
    name = WORDS[_models(method, task)[0]]
    iterate = [step.scored_iterate for step in method.step if step.scored_iterate]
    return f"{name}, {iterate[-1]}" if iterate else name


def scores_own_models(method: Method, task: Task) -> bool:
    """Whether a model is scored that has tensors of the single client."""
    return "own" in _models(method, task)


def list_models_at_home(method: Method, task: Task) -> list[Scored]:
    """The models that a client can score without tensors that other clients keep, the one that the method scores first.

    The list is empty if the method scores a model that needs such tensors.
    """
    main, *others = _models(method, task)
    return [model for model in (main, *others) if model in ("own", "global")] if main in ("own", "global") else []


def evaluate(
    method: Method,
    task: Task,
    server: Server,
    states: Mapping[int, ClientState],
    federation: Federation,
    splits: Sequence[Split] = ("test",),
    models: Sequence[Scored] | None = None,
    clients: Sequence[int] | None = None,
    fewest: int = 1,
    keepers: Keepers = ONE_KEEPER,
) -> list[Score]:
    """The scores of every client, or of these, that has samples in a split; and of the clients that are held out.

    Where samples are in groups, the counts of `groups.Tally` are among them, of each group with at least `fewest`
    samples at the client. `models` are the models to score, first the one that `accuracy` belongs to. Default: all that exist.
    With `keepers` in several processes, `clients` are those whose own states this process keeps.
    """
    main, *others = models or _models(method, task)
    theta = server.theta if server.evaluated is None else server.evaluated
    variants = [(main, theta, ""), *((model, theta, f" of the {WORDS[model]} model") for model in others)]
    if server.evaluated is not None:
        variants.append((main, server.theta, " of the last model"))
    found: list[Score] = []
    chosen = range(len(federation)) if clients is None else clients
    for split in splits:
        holders = [(k, federation.clients[k].split(split)) for k in chosen]
        holders = [(k, index) for k, index in holders if len(index)]
        # The training data are the most samples; the model that the others are beside tells enough there.
        for model, values, suffix in variants[:1] if split == "train" else variants:
            scores = _scores(task, server, states, holders, model, values, keepers)
            for (k, index), per_sample in zip(holders, scores, strict=True):
                client = federation.clients[k]
                domain = client.domain or client.name
                figures = _figures(task, per_sample, federation.y[index])
                if federation.groups is not None and not suffix:
                    figures |= name_counts(_tally(task, per_sample, index, fewest))
                for metric, value in figures.items():
                    if not suffix or metric in (task.loss.score, "loss"):
                        found.append(Score(client.name, domain, split, metric + suffix, value, len(index)))
    if clients is None:
        found += evaluate_unseen(method, task, server, states, federation, federation.unseen)
    return found


def evaluate_unseen(
    method: Method,
    task: Task,
    server: Server,
    states: Mapping[int, ClientState],
    federation: Federation,
    clients: Sequence[Client],
    keepers: Keepers = ONE_KEEPER,
) -> list[Score]:
    """The scores of clients that are held out: they have no tensors of their own, and no number."""
    theta = server.theta if server.evaluated is None else server.evaluated
    holders = [(-1, find_scored(client)) for client in clients]
    scores = _scores(task, server, states, holders, choose_model_for_unseen(method, task), theta, keepers)
    return [
        Score(client.name, client.domain or client.name, UNSEEN, metric, value, len(index))
        for client, (_, index), values in zip(clients, holders, scores, strict=True)
        for metric, value in _figures(task, values, federation.y[index]).items()
    ]


def choose_model_for_unseen(method: Method, task: Task) -> Scored:
    """The model by which a client is scored that never trained: the global one or, where the shared tensors alone make
    no model, the one with the mean of the clients' own tensors."""
    return "global" if "global" in _models(method, task) else "mean"


def _figures(task: Task, values: Mapping[str, Tensor], y: Tensor) -> dict[str, float]:
    """One client's figures from the scores of its samples, `[n]` each, and the outputs for them, `[n, outputs]`.

    They are means; errors, if numbers are predicted; the AUC, if there are two classes; and the metrics that the run
    asks for. A figure that is not defined for this client is left out.
    """
    figures = {metric: float(value.double().mean()) for metric, value in values.items() if metric != "outputs"}
    if "outputs" not in values:
        return figures
    outputs, y = values["outputs"], y.cpu()
    if task.loss.target == "number":
        answers = task.loss.decide(outputs).double().numpy()
        return figures | measure_errors(answers, y.double().numpy(), task.federation.spread)
    wanted = dict.fromkeys((*(["auc"] if task.has_two_classes else []), *task.metrics))
    questions = _ask(task.loss, outputs, y, task.classes)
    found = {name: METRICS[name](*questions) for name in wanted}
    return figures | {name: value for name, value in found.items() if not math.isnan(value)}


def _tally(task: Task, values: Mapping[str, Tensor], index: Tensor, fewest: int) -> Tally:
    """The counts of one client's samples by group. A group of fewer than `fewest` samples counts none.

    Where no classes are predicted, all samples count as not positive and as answered so: only losses and scores tell
    groups apart.
    """
    marks = task.federation.groups
    assert marks is not None
    groups = len(marks.names)
    mine, y = F.one_hot(marks.of.cpu()[index.cpu()], groups).double(), task.federation.y.cpu()[index.cpu()]
    mine = mine * (mine.sum(0) >= fewest)
    classes = task.loss.target == "classes"
    truth, answer = (
        F.one_hot((one == POSITIVE).long() if classes else torch.zeros(len(y), dtype=torch.long), 2).double()
        for one in (y, task.loss.decide(values["outputs"]))
    )
    counts = torch.einsum("nz,nt,na->zta", mine, truth, answer)
    losses = torch.einsum("nz,nt,n->zt", mine, truth, values["loss"].double())
    return Tally(counts.numpy(), (mine.T @ values[task.loss.score].double()).numpy(), losses.numpy())


def _ask(loss: Loss, outputs: Tensor, y: Tensor, classes: int) -> tuple[Floats, Booleans, Booleans]:
    """The margins, the answers and the truth of each question, `[n, questions]` each, as `metrics.METRICS` takes them."""
    margins, chosen = loss.measure_margins(outputs[:, :classes]).double().numpy(), loss.decide(outputs)
    if loss.target == "labels":
        return margins, chosen.bool().numpy(), y.bool().numpy()
    if classes == 2:
        return margins, (chosen[:, None] == 1).numpy(), (y[:, None] == 1).numpy()
    said, true = (F.one_hot(value.clamp(max=classes), classes + 1)[:, :classes].bool().numpy() for value in (chosen, y))
    return margins, said, true


def _models(method: Method, task: Task) -> list[Scored]:
    """The models that exist, the one that the method scores first.

    That is the most personal one that a wrap asks for (`"own"` before `"domain"` before `"mean"`), and always `"own"`
    where the buffer policy leaves buffers with the clients.
    """
    kept = {name for name, policy in task.policies.items() if policy == "local"} - task.private_buffers
    wanted: set[Scored] = {wrap.scores for wrap in method.wrap}
    if kept:
        wanted.add("own")
    beside = any(wrap.leaves_global for wrap in method.wrap)
    if method.is_pooled or not (beside or wanted - {"global"}):
        return ["global"]
    ranking: tuple[Scored, ...] = ("own", "domain", "mean", "global")
    main = next(model for model in ranking if model in wanted)
    exist: list[Scored] = ["own", "mean", "global"] if beside else ["own", "mean"]
    return [main, *(model for model in exist if model != main)]


def _scores(
    task: Task,
    server: Server,
    states: Mapping[int, ClientState],
    holders: Sequence[tuple[int, Tensor]],
    model: Scored,
    theta: Tensor,
    keepers: Keepers = ONE_KEEPER,
) -> list[dict[str, Tensor]]:
    """For each of `holders` (client, positions of its samples), the scores of its samples by this model, `[n]` each."""
    params = {**task.initial_params, **task.layout.split(theta.to(task.device))}
    if model == "global":
        buffers = _here(task, server.buffers)
        return _scores_of_one_model(task, params, buffers, [index for _, index in holders], personal=False)
    everyone = range(len(task.federation))
    if model == "mean":
        filled = _filled(task, params, server, states, everyone, keepers)
        return _scores_of_one_model(task, *filled, [index for _, index in holders], personal=True)
    if model == "own":
        each = (_filled(task, params, server, states, [client]) for client, _ in holders)
    else:
        mates: dict[str, list[int]] = {}
        for k in everyone:
            mates.setdefault(task.federation.clients[k].domain, []).append(k)
        of = {domain: _filled(task, params, server, states, some, keepers) for domain, some in mates.items()}
        each = (of[task.federation.clients[client].domain] for client, _ in holders)
    return [
        task.scores(*filled, index.to(task.device), personal=True)
        for filled, (_, index) in zip(each, holders, strict=True)
    ]


def _scores_of_one_model(
    task: Task, params: Tensors, buffers: Tensors, indices: Sequence[Tensor], personal: bool
) -> list[dict[str, Tensor]]:
    """The scores of one model on several sets of samples. A set that several clients share is scored once."""
    distinct = {id(index): index for index in indices}
    if not distinct:
        return []
    sizes = [len(index) for index in distinct.values()]
    # A batch must not mix clients where its statistics are used, or where a sample's noise follows from its place in it.
    if task.evaluates_in_batches or task.noise_in_evaluation:
        parts = {key: task.scores(params, buffers, index.to(task.device), personal) for key, index in distinct.items()}
    else:
        whole = task.scores(params, buffers, torch.cat(list(distinct.values())).to(task.device), personal)
        split = {metric: torch.split(value, sizes) for metric, value in whole.items()}
        parts = {key: {metric: split[metric][i] for metric in split} for i, key in enumerate(distinct)}
    return [parts[id(index)] for index in indices]


def collect_tensors(
    task: Task, server: Server, states: Mapping[int, ClientState], clients: Sequence[int]
) -> dict[str, Tensor]:
    """All tensors of a model by name, as it is scored: the shared ones, and the mean of these clients' own ones."""
    theta = server.theta if server.evaluated is None else server.evaluated
    params = {**task.initial_params, **task.layout.split(theta.to(task.device))}
    own, buffers = _filled(task, params, server, states, clients)
    return {**own, **buffers}


def _filled(
    task: Task,
    params: Tensors,
    server: Server,
    states: Mapping[int, ClientState],
    clients: Sequence[int],
    keepers: Keepers = ONE_KEEPER,
) -> tuple[Tensors, Tensors]:
    """Parameters and buffers of a whole model: `params`, completed by the mean of these clients' own tensors.

    The mean is weighted by training samples. Clients that never took part are left out, unless none did.
    """
    some = clients if isinstance(clients, range) else set(clients)
    seen = sorted(k for k in states if k in some) or list(clients[:1])
    weights = shares(torch.tensor([float(len(task.federation.clients[k].train)) for k in seen]))
    private = {name: task.initial_params[name] for name in task.private}
    buffers = _here(task, server.buffers)
    local = {name: buffers[name] for name, policy in task.policies.items() if policy == "local"}
    rows = server.memory.shared.get(PERSONAL)

    def mean(each: Sequence[Tensors], weights: Tensor) -> Tensors:
        if len(seen) == 1 == len(each) and keepers is ONE_KEEPER:
            return each[0]
        return weighted_mean({name: torch.stack([one[name] for one in each]) for name in each[0]}, weights)

    here = [i for i, k in enumerate(seen) if keepers.keeps(k)]
    mine, part = [states.get(seen[i], {}) for i in here], weights[here]
    if not here:  # the initial tensors stand in, with no weight
        mine, part = [{}], torch.zeros(1)
    own = keepers.add_up(mean([private | _here(task, state.get(PRIVATE, {})) for state in mine], part))
    if isinstance(rows, PerClient):
        own |= mean([task.personal.split(rows[k].to(task.device)) for k in seen], weights)
    kept = keepers.add_up(mean([local | _here(task, state.get(BUFFERS, {})) for state in mine], part))
    return {**params, **own}, {**buffers, **kept}


def _here(task: Task, tensors: Tensors) -> Tensors:
    return {name: value.to(task.device) for name, value in tensors.items()}
