"""What analyses of a finished run look at: its scored model, or the model that a client has after one more round; and
test samples of all domains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.engine.result import Run
from equipoise.errors import EquipoiseError
from equipoise.losses import CrossEntropy
from equipoise.rounds.client import BUFFERS, PRIVATE, client_round
from equipoise.rounds.evaluation import collect_tensors
from equipoise.rounds.server import make_broadcast
from equipoise.runs.meant import find_client
from equipoise.runs.requests import Request
from equipoise.types import PERSONAL, ClientState, Model, Outputs, Replies

AT_ONCE = 64  # samples that are computed at a time: all feature maps of a batch are in memory together


class Trained(NamedTuple):
    """What one client sends, and what it keeps, after one more round."""

    replies: Replies
    state: ClientState


Train = Callable[[int], Trained]  # lets the client of a number train for one more round


# --------------------------------------------------------------------------- models
def open_next_round(run: Run) -> Train:
    """A function that lets a client train for one more round from the final model. Each client trains once at most."""
    broadcast = make_broadcast(run.server, len(run.rounds), run.rounds[-1].lr)

    @functools.cache
    def train(client: int) -> Trained:
        states = {client: run.states[client]} if client in run.states else {}
        if not states:  # it has not taken part so far
            states = client_round(run.method, run.task, [client], broadcast, {}, run.seed, "start")[1]
        replies, kept = client_round(run.method, run.task, [client], broadcast, states, run.seed)
        return Trained(replies, kept[client])

    return train


def take_model(run: Run, request: Request, train: Train) -> Model:
    """The model that a request means: the local one of the client that it names, otherwise the scored one."""
    return take_local_model(run, find_client(run, request), train) if request.client else take_scored_model(run)


def take_scored_model(run: Run) -> Model:
    """The scored model. Of tensors that clients keep to themselves it has the mean."""
    task = run.task
    tensors = collect_tensors(task, run.server, run.states, range(len(task.federation)))
    return Model(*({name: tensors[name] for name in names} for names in (task.initial_params, task.initial_buffers)))


def take_local_model(run: Run, client: int, train: Train) -> Model:
    """The model that a client has after one more round: what it trained, with the tensors that it keeps to itself."""
    task, (replies, state) = run.task, train(client)
    assert replies.updates is not None
    params = {**task.initial_params, **task.layout.split(run.server.theta + replies.updates[0])}
    if PERSONAL in replies.reports:
        params |= task.personal.split(replies.reports[PERSONAL][0])
    params |= state.get(PRIVATE, {})
    sent = {name: value[0] for name, value in replies.buffers.items()}
    buffers = {**run.server.buffers, **sent, **state.get(BUFFERS, {})}
    return Model(*({name: value.to(task.device) for name, value in some.items()} for some in (params, buffers)))


def apply_model(run: Run, model: Model, x: Tensor) -> Outputs:
    """The outputs of a model for prepared samples, in eval mode and for autograd."""
    params = {name: value.detach().clone().requires_grad_() for name, value in model.params.items()}
    return run.task.apply(params, model.buffers, x.to(run.task.device, run.task.federation.example().dtype))


def show_samples(run: Run, model: Model, positions: Tensor) -> Outputs:
    """The outputs of a model for the samples at these positions, for autograd."""
    return apply_model(run, model, run.federation.preparation.evaluation(run.federation.x[positions]))


@torch.no_grad()
def compute_features(run: Run, model: Model, positions: Tensor) -> Tensor:
    """The features `[n, width]` of the samples at these positions, in float64."""
    # Where evaluation uses the statistics of a batch, the samples make one batch.
    size = len(positions) if run.task.evaluates_in_batches else AT_ONCE
    return torch.cat([show_samples(run, model, some).features for some in positions.split(size)]).double().cpu()


# --------------------------------------------------------------------------- samples
def refuse_without_class_outputs(run: Run, kind: str) -> None:
    """Refuse an analysis of classes where the model has no output per class."""
    if not isinstance(run.task.loss, CrossEntropy):
        raise EquipoiseError(f"`{kind}` needs one output of the model per class. Loss `{run.task.loss}` has another.")


def list_tests(run: Run) -> dict[str, Tensor]:
    """The positions of the test samples of each domain: those of its first client that has some."""
    data = run.federation
    # In reversed order, so that of several clients of a domain the first one is kept.
    tests = {client.domain or client.name: client.test for client in reversed(data.clients) if len(client.test)}
    return {domain: tests[domain] for domain in data.domains if domain in tests}


def spread_tests(run: Run, most: int) -> tuple[Tensor, list[str]]:
    """The positions of about `most` test samples, equally many of each domain, and the domain of each."""
    each = max(1, most // len(run.federation.domains))
    # Evenly spaced over the test set, so that all classes appear even if it is sorted by class.
    parts = {
        domain: test[torch.linspace(0, len(test) - 1, min(each, len(test))).long()]
        for domain, test in list_tests(run).items()
    }
    return torch.cat(list(parts.values())), [domain for domain, part in parts.items() for _ in part]


def pick_of_one_class(run: Run, most: int) -> tuple[Tensor, list[str]]:
    """The position of one test sample per domain, of at most `most` domains, and these domains.

    All samples are of the first class that each of the domains has; if there is none, the first samples are taken.
    """
    tests, y = dict(list(list_tests(run).items())[:most]), run.federation.y
    held = [set(y[test].tolist()) for test in tests.values()]
    common = set.intersection(*held) if held else set()
    places = [test[y[test] == min(common)][0] if common else test[0] for test in tests.values()]
    return torch.stack(places), list(tests)
