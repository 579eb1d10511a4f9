"""The cost of a method for one client in one round: how much it uploads, downloads and computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from equipoise.data.clients import Client
from equipoise.data.federation import Federation
from equipoise.method import Method
from equipoise.roles import Phase
from equipoise.rounds.client import client_round
from equipoise.rounds.server import begin_server, make_broadcast, server_probe, server_round
from equipoise.task import Task
from equipoise.training import Training
from equipoise.types import REPORTS, ClientState, EquipoiseError, PerClient, Replies, Server

Shape = Sequence[int]
TRIED = 2  # samples and clients of the small federation in which a method's work is counted


def _count_product(total: Shape, a: Shape, b: Shape, *_: object, **__: object) -> int:
    """The operations of a batched matrix product, from the shapes `a [m, n, k]` and `b [m, k, p]`."""
    return 2 * prod(a) * b[-1]


# A product that torch does not count by itself: one that is added in place, as in steps of linear layers.
IN_PLACE = {torch.ops.aten.baddbmm_: _count_product}


class Work(NamedTuple):
    """What a client does and receives in a round, counted in a small federation."""

    step: float  # floating-point operations of a training step, per sample
    besides: float  # those of reports, probes and frozen models, per sample of the client
    received: int  # bytes that the server's parts send down beside the model


def estimate_cost(method: Method, task: Task, cohort: int) -> dict[str, int]:
    """Estimate the cost for one client in one round.

    `parameters` counts the shared parameters. `upload`, in bytes, consists of the shared parameters, the averaged
    buffers and the reports, which include personal tensors; `download` of the shared parameters, the buffers and what the
    server's parts send. `flops` is the work of an average client: its training steps, with all that the method's terms
    add, and its reports, as torch counts them (a multiplication and an addition are two) in the second round of a small
    federation. `clients` is the number of clients per round.
    """
    params = {name: value.cpu() for name, value in task.initial_params.items()}
    buffers = {name: value.cpu() for name, value in task.initial_buffers.items()}
    width = next(iter(params.values())).element_size() if params else 4
    averaged = sum(_count_bytes(b) for name, b in buffers.items() if task.policies[name] == "average")
    sizes = {"m": 1, "G": task.layout.size, "C": task.classes, "P": task.personal.size, "F": _count_features(task)}
    reported = sum(
        prod(sizes.get(axis, 1) for axis in REPORTS[name].axes)
        for part in method.reports
        for name in part.gives
        if name in REPORTS
    )
    training = task.training
    samples = task.federation.total_samples / len(task.federation)
    seen = samples * training.epochs if training.steps is None else training.steps * (training.batch or samples)
    work = _count_work(method, task)
    return {
        "parameters": task.layout.size,
        "upload": width * (task.layout.size + reported) + averaged,
        "download": width * task.layout.size + averaged + work.received,
        "flops": round(work.step * seen + work.besides * samples),
        "clients": cohort,
    }


def _count_work(method: Method, task: Task) -> Work:
    """Count the work of a client in the second round of a federation of two clients with two samples each.

    A method that cannot be tried so small is taken to do three forward passes per sample (once forward, twice backward).
    """
    try:
        small = replace(task, federation=_shrink(task), training=_shorten(task.training, 1))
        server, states = _play_first_round(method, small)
        one, two = (
            _count_flops(method, replace(small, training=_shorten(task.training, steps)), server, states)
            for steps in (1, 2)
        )
    except EquipoiseError:
        return Work(3 * _count_forward(task), 0.0, 0)
    received = sum(_count_bytes(value) for value in server.memory.shared.values())
    return Work((two - one) / TRIED, (2 * one - two) / TRIED, received)


def _shrink(task: Task) -> Federation:
    """The federation with two clients that hold the pool's first two samples; what the clients reach alone is given."""
    data = task.federation
    some = torch.arange(TRIED) % len(data.x)
    count = min(TRIED, len(data.clients))
    clients = [Client(c.name, some, some, some, c.domain, optimum=0.0) for c in data.clients[:count]]
    return replace(data, clients=tuple(clients), unseen=())


def _shorten(training: Training, steps: int) -> Training:
    return replace(training, epochs=1, steps=steps, batch=TRIED)


def _play_first_round(method: Method, task: Task) -> tuple[Server, Mapping[int, ClientState]]:
    """The server and the clients' states after one round, in which everything is sent for the first time."""
    setting, server = task.setting(2, 0), begin_server(method, task)
    _, states = _ask_each(method, task, server, {}, "start")
    if method.probes:
        replies, _ = _ask_each(method, task, server, states, "probe")
        server, _ = server_probe(method, server, replies, setting)
    replies, states = _ask_each(method, task, server, states, "train")
    return server_round(method, server, replies, setting)[0], states


def _ask_each(
    method: Method, task: Task, server: Server, states: Mapping[int, ClientState], phase: Phase
) -> tuple[Replies, dict[int, ClientState]]:
    """The replies of all clients and what each keeps. They are asked one by one: not every model can be stacked."""
    found = [
        client_round(method, task, [client], make_broadcast(server, 2), states, 0, phase)
        for client in range(len(task.federation))
    ]
    return Replies.join([reply for reply, _ in found]), {k: state for _, kept in found for k, state in kept.items()}


def _count_flops(method: Method, task: Task, server: Server, states: Mapping[int, ClientState]) -> float:
    """The floating-point operations of the first client in a round, with its probe if the method asks for one."""
    broadcast = make_broadcast(server, 2)
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        for phase in ("probe", "train") if method.probes else ("train",):
            client_round(method, task, [0], broadcast, states, 0, phase)
    return float(counter.get_total_flops())


def _count_bytes(value: Tensor | PerClient) -> int:
    """The bytes of a tensor, or of the row of one client."""
    if isinstance(value, PerClient):
        rows = [*value.values(), *([] if value.default is None else [value.default])]
        return _count_bytes(rows[0]) if rows else 0
    return value.numel() * value.element_size()


def _count_features(task: Task) -> int:
    """The number of features of the model."""
    out = task.apply(task.initial_params, task.initial_buffers, task.federation.example().to(task.device))
    return int(out.features.shape[1])


def _count_forward(task: Task) -> float:
    """The floating-point operations of a forward pass, per sample."""
    example = task.federation.example().to(task.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        task.apply(task.initial_params, task.initial_buffers, example)
    return counter.get_total_flops() / len(example)
