"""The clients' half of a round, as a pure function: it is given all state, and returns the next state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.local import Fitted, Start, fit, for_each, pick, tree_map
from equipoise.method import Method
from equipoise.roles import Beginning, ClientPart, Phase, Report, Term
from equipoise.rounds.alone import train_alone
from equipoise.schedules import CONSTANT
from equipoise.task import Task, stack_copies
from equipoise.training import Training
from equipoise.types import (
    PERSONAL,
    Broadcast,
    ClientState,
    EquipoiseError,
    PerClient,
    Received,
    Replies,
    Reports,
    Samples,
    Shared,
    Tensors,
    Trained,
)

PRIVATE, BUFFERS = "private parameters", "own buffers"  # the keys in a client's state that belong to no part


def client_round(
    method: Method,
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    states: Mapping[int, ClientState],
    seed: int,
    phase: Phase = "train",
) -> tuple[Replies, dict[int, ClientState]]:
    """Do one phase of a round for these clients: what they send to the server, and their next states.

    The phase `start` happens once per client, also for one that joins late, and fills its state. In `select` and
    `probe`, clients report on the received model without training. In `train`, they train and report. Several clients
    are vectorised; the results do not depend on how the clients of a round are grouped.
    """
    if phase == "start":
        return Replies(tuple(clients), {}), _to_server(_start(method, task, clients, broadcast, seed))
    alike = _group_by_state(clients, states)
    if len(alike) > 1:
        each = [client_round(method, task, some, broadcast, states, seed, phase) for some in alike]
        return Replies.join([replies for replies, _ in each]), {
            c: state for _, kept in each for c, state in kept.items()
        }
    start = _start_of(task, clients, broadcast, states)
    training, m = _find_training(task, broadcast), len(clients)
    params = {**stack_copies(start.params, m), **start.own_params}
    buffers = {**stack_copies(start.buffers, m), **start.own_buffers}
    if phase != "train":
        untouched = torch.zeros(m, device=task.device)
        fitted = Fitted(params, buffers, untouched, untouched)
    else:
        fitted = fit(
            task, method.terms, clients, start, params=params, buffers=buffers,
            round=broadcast.round, rounds=broadcast.rounds, seed=seed, training=training,
        )  # fmt: skip
    reports, kept = _conclude(method, task, clients, start, fitted, broadcast, training, seed, phase)
    if phase != "train":
        return Replies(tuple(clients), reports), dict(states)
    updates = task.layout.join(fitted.params, lead=1).sub_(broadcast.theta.to(task.device))
    travelling = {name: fitted.buffers[name] for name, policy in task.policies.items() if policy == "average"}
    return Replies(tuple(clients), reports, *_to_server((updates, travelling))), kept


def _find_training(task: Task, broadcast: Broadcast) -> Training:
    """The settings of local training in this round: with the learning rate that the server sent, if it sent one."""
    if broadcast.lr is None or broadcast.lr == task.training.lr:
        return task.training
    return replace(task.training, lr=broadcast.lr, schedule=CONSTANT)


def _group_by_state(clients: Sequence[int], states: Mapping[int, ClientState]) -> list[list[int]]:
    """Groups of clients whose parts keep tensors of the same names, which can be stacked.

    The names differ where a part keeps its first tensors in `finish`, and only some of the clients took part before.
    Private parameters and own buffers need no groups: they have an initial value for every client.
    """
    groups: dict[object, list[int]] = {}
    for client in clients:
        state = states.get(client, {})
        held = frozenset((key, *part) for key, part in state.items() if key not in (PRIVATE, BUFFERS))
        groups.setdefault(held, []).append(client)
    return list(groups.values())


def _to_server(tree: Any) -> Any:
    """Copy to the CPU what leaves a client, because the server works there."""
    return tree_map(lambda tensor: tensor.cpu(), tree)


def _on(device: torch.device, value: Tensor) -> Tensor:
    """The tensor on the device. Apple's devices (`mps`) have no float64, so that it becomes float32 there."""
    shorter = device.type == "mps" and value.dtype == torch.float64
    return value.to(device, torch.float32) if shorter else value.to(device)


def _start_of(task: Task, clients: Sequence[int], broadcast: Broadcast, states: Mapping[int, ClientState]) -> Start:
    """What these clients start from. Their parts must all keep tensors of the same names."""
    mine = [states.get(c, {}) for c in clients]

    def here(tensors: Tensors) -> Tensors:
        return {name: _on(task.device, value) for name, value in tensors.items()}

    def stack_of(key: str, initial: Tensors) -> Tensors:
        each = [{**initial, **here(state.get(key, {}))} for state in mine]
        return {name: torch.stack([one[name] for one in each]) for name in initial}

    received = here(broadcast.buffers)
    local = {name: received[name] for name, policy in task.policies.items() if policy == "local"}
    private = {name: value for name, value in task.initial_params.items() if name in task.private}
    kept = {key: part for key, part in mine[0].items() if key not in (PRIVATE, BUFFERS)} if mine else {}
    return Start(
        params=task.layout.split(broadcast.theta.to(task.device)),
        buffers={name: value for name, value in received.items() if name not in local},
        shared=here({name: value for name, value in broadcast.shared.items() if isinstance(value, Tensor)}),
        own_params={**stack_of(PRIVATE, private), **_personal_of(task, clients, broadcast.shared)},
        own_buffers=stack_of(BUFFERS, local),
        own=here({n: value.take(clients) for n, value in broadcast.shared.items() if isinstance(value, PerClient)}),
        states={
            key: here({name: torch.stack([state[key][name] for state in mine]) for name in part})
            for key, part in kept.items()
        },
        layout=task.layout,
    )


def _personal_of(task: Task, clients: Sequence[int], shared: Shared) -> Tensors:
    """The clients' personal tensors, `[m, ...]` each: as the server mixed them, or the initial ones before it has."""
    rows = shared.get(PERSONAL)
    if isinstance(rows, PerClient):
        return task.personal.split(rows.take(clients).to(task.device))
    return stack_copies({name: task.initial_params[name] for name in task.personal.names}, len(clients))


def _samples(task: Task, clients: Sequence[int], split: str) -> Samples:
    """The clients' samples of one split, stacked `[m, n]`. Clients with fewer than n samples are padded."""
    each = [getattr(task.federation.clients[c], split) for c in clients]
    longest = max(len(index) for index in each)
    if all(len(index) == longest for index in each):
        return Samples(torch.stack(each).to(task.device), None)
    index = torch.stack([F.pad(one, (0, longest - len(one))) for one in each])
    valid = torch.stack([(torch.arange(longest) < len(one)).float() for one in each])
    return Samples(index.to(task.device), valid.to(task.device))


@torch.no_grad()
def _conclude(
    method: Method,
    task: Task,
    clients: Sequence[int],
    start: Start,
    fitted: Fitted,
    broadcast: Broadcast,
    training: Training,
    seed: int,
    phase: Phase,
) -> tuple[Reports, dict[int, ClientState]]:
    """The reports and the next states of the clients, from their trained models."""
    asked = method.list_reports(phase)
    # Where evaluation depends on the whole batch, padding would change the result. Then reports that run the model are
    # computed client by client, and so are the states that terms keep.
    stacking = [report for report in asked if report.stacks and not (report.runs_model and task.evaluates_in_batches)]
    alone = [report for report in asked if report not in stacking]
    trains = phase == "train"

    def view(
        model: tuple[Tensors, Tensors, Tensor, Tensor],
        own: tuple[Tensors, Tensors, Tensors, ClientState],
        train: Samples,
        validation: Samples,
        path: tuple[int | str, ...] = (),
    ) -> Trained:
        params, buffers, steps, loss = model
        own_params, own_buffers, sent, states = own
        trained = Trained(
            start.received(own_params, own_buffers, sent), params, buffers, states, states, train, validation, steps,
            loss, broadcast.round, training.lr, training.momentum, task.classes, task.layout, task.personal,
            task.modules["eval"], task.chunks, task.apply, path, task.loss, task.group_count, task.find_groups,
        )  # fmt: skip
        after = {term.key: _finished(term, trained) for term in method.terms} if trains else {}
        return trained._replace(next_states={**states, **{key: state for key, state in after.items() if state}})

    def results(reports: Sequence[Report], trained: Trained) -> Reports:
        return {name: value for report in reports for name, value in _reported(report, trained).items()}

    def together(*args: Any) -> tuple[Reports, ClientState]:
        trained = view(*args)
        return results(stacking, trained), trained.next_states

    def apart(i: int, client: int) -> tuple[Reports, ClientState]:
        model, own = pick((tuple(fitted), start.per_client), i)
        train, validation = (pick(_samples(task, [client], s), 0) for s in ("train", "validation"))
        trained = view(model, own, train, validation, (seed, broadcast.round, client))
        return results(alone, trained), trained.next_states

    model = tuple(fitted)
    train, validation = _samples(task, clients, "train"), _samples(task, clients, "validation")
    values, states = for_each(together, len(clients))(model, start.per_client, train, validation)
    after = [pick(states, i) for i in range(len(clients))]
    if alone or task.evaluates_in_batches:
        each = [apart(i, client) for i, client in enumerate(clients)]
        values |= {name: torch.stack([one[name] for one, _ in each]) for name in each[0][0]}
        after = [states for _, states in each]
    kept: dict[int, ClientState] = {}
    for i, client in enumerate(clients):
        kept[client] = after[i]
        if task.private:
            kept[client][PRIVATE] = {name: fitted.params[name][i] for name in sorted(task.private)}
        if start.own_buffers:
            kept[client][BUFFERS] = {name: fitted.buffers[name][i] for name in start.own_buffers}
    # Copies, because a view of one client's row would keep the whole stack in memory.
    rows = tree_map(torch.clone, kept) if len(clients) > 1 else kept
    return _to_server(values), _to_server(rows)


def _finished(term: Term, trained: Trained) -> Tensors:
    """The term's next state. It is an error if its names and shapes differ from those of the state before."""
    before, after = trained.states.get(term.key), term.finish(trained)
    if not isinstance(after, dict):
        raise EquipoiseError(f"`{term.name}` (terms): `finish` must return a dict. Found a {type(after).__name__}.")
    for name, value in after.items():
        if not isinstance(value, Tensor):
            raise EquipoiseError(
                f"`{term.name}` (terms) can keep only tensors between rounds. Found {type(value).__name__} as `{name}`."
            )
    if before is not None:
        shapes, found = ({name: tuple(value.shape) for name, value in state.items()} for state in (before, after))
        if shapes != found:
            raise EquipoiseError(
                f"`{term.name}` (terms) must keep tensors of the same names and shapes from round to round. It had "
                f"{shapes}, and its `finish` gives {found}."
            )
    return after


def _reported(report: Report, trained: Trained) -> Reports:
    """The values of a report. It is an error if their names are not those that it declares in `gives`."""
    found = report(trained)
    if set(found) != set(report.gives):
        raise EquipoiseError(
            f"`{report.name}` (reports) says that it gives {', '.join(report.gives) or 'nothing'}, and gives "
            f"{', '.join(found) or 'nothing'}."
        )
    return found


def _start(
    method: Method, task: Task, clients: Sequence[int], broadcast: Broadcast, seed: int
) -> dict[int, ClientState]:
    """The states of clients that take part for the first time."""

    everyone = clients

    def alone(
        epochs: int, splits: Sequence[str], stop: Callable[[Tensor], bool], clients: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        some = everyone if clients is None else clients
        return train_alone(task, some, _start_of(task, some, broadcast, {}), seed, epochs, splits, stop)

    start = _start_of(task, clients[:1], broadcast, {})
    received = Received(
        {**task.initial_params, **start.params},
        {name: value.to(task.device) for name, value in broadcast.buffers.items()},
        start.shared,
        {},
        task.layout,
    )
    optima = [task.federation.clients[c].optimum for c in clients]
    beginning = Beginning(clients, received, optima, alone)
    states: dict[int, ClientState] = {c: {} for c in clients}
    for part in (*method.terms, *method.reports):
        if type(part).start is ClientPart.start:
            continue
        found = part.start(beginning)
        if len(found) != len(clients):
            raise EquipoiseError(
                f"`{part.name}` ({part.role}) must start one state per client. Found {len(found)} for {len(clients)} "
                "clients."
            )
        for client, state in zip(clients, found, strict=True):
            for name, value in state.items():
                if not isinstance(value, Tensor):
                    raise EquipoiseError(
                        f"`{part.name}` ({part.role}) can start only with tensors. Found a {type(value).__name__} as "
                        f"`{name}`."
                    )
            if state:
                states[client][part.key] = state
    return states
