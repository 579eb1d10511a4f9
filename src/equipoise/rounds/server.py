"""One federated round as two pure functions: all state goes in and comes out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.grammar import did_you_mean
from equipoise.local import Fitted, Start, fit, for_each, pick, tree_map
from equipoise.method import Method, parse
from equipoise.parts.weights import shares
from equipoise.roles import Beginning, ClientPart, Part, Phase, Report
from equipoise.task import Task, stacked
from equipoise.types import (
    REPORTS,
    Broadcast,
    ClientState,
    EquipoiseError,
    Layout,
    Memory,
    Merged,
    PerClient,
    Received,
    Replies,
    Reports,
    Round,
    Samples,
    Server,
    Setting,
    Shared,
    Tensors,
    Trained,
)
from equipoise.updates import Updates

PRIVATE, BUFFERS = "private parameters", "own buffers"  # what a client keeps beside the states of parts
PERSONAL = "personal"  # under this name the server reports and shares a client's personal tensors, as one row


# --------------------------------------------------------------------------- the client's half
def client_round(
    method: Method,
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    states: Mapping[int, ClientState],
    seed: int,
    phase: Phase = "train",
) -> tuple[Replies, dict[int, ClientState]]:
    """What these clients do in one phase of a round, and what they keep.

    `start` happens once a client, also for one that joins late, and fills its state. `probe` reports on the received model
    without training. `train` trains and reports. Several clients are vectorised; the numbers do not depend on how the
    clients of a round are grouped.
    """
    if phase == "start":
        return Replies(tuple(clients), {}), _to_server(_start(method, task, clients, broadcast, seed))
    start = _start_of(task, clients, broadcast, states)
    m = len(clients)
    params = {**stacked(start.params, m), **start.own_params}
    buffers = {**stacked(start.buffers, m), **start.own_buffers}
    if phase == "probe":
        untouched = torch.zeros(m, device=task.device)
        fitted = Fitted(params, buffers, untouched, untouched)
    else:
        fitted = fit(
            task, method.terms, clients, start, params=params, buffers=buffers,
            round=broadcast.round, rounds=broadcast.rounds, seed=seed,
        )  # fmt: skip
    reports, kept = _conclude(method, task, clients, start, fitted, broadcast, seed, phase)
    if phase == "probe":
        return Replies(tuple(clients), reports), dict(states)
    updates = task.layout.join(fitted.params, lead=1).sub_(broadcast.theta.to(task.device))
    travelling = {name: fitted.buffers[name] for name, policy in task.policies.items() if policy == "average"}
    return Replies(tuple(clients), reports, *_to_server((updates, travelling))), kept


def _to_server(tree: Any) -> Any:
    """What leaves a client leaves its device."""
    return tree_map(lambda tensor: tensor.cpu(), tree)


def _on(device: torch.device, value: Tensor) -> Tensor:
    """Some devices (Apple's) have no numbers of double length."""
    shorter = device.type == "mps" and value.dtype == torch.float64
    return value.to(device, torch.float32) if shorter else value.to(device)


def _start_of(task: Task, clients: Sequence[int], broadcast: Broadcast, states: Mapping[int, ClientState]) -> Start:
    mine = [states.get(c, {}) for c in clients]

    def here(tensors: Tensors) -> Tensors:
        return {name: _on(task.device, value) for name, value in tensors.items()}

    def stack_of(key: str, initial: Tensors) -> Tensors:
        each = [{**initial, **here(state.get(key, {}))} for state in mine]
        return {name: torch.stack([one[name] for one in each]) for name in initial}

    received = here(broadcast.buffers)
    local = {name: received[name] for name, policy in task.policies.items() if policy == "local"}
    parts = [key for key in (mine[0] if mine else {}) if key not in (PRIVATE, BUFFERS)]
    return Start(
        params=task.layout.split(broadcast.theta.to(task.device)),
        buffers={name: value for name, value in received.items() if name not in local},
        shared=here({name: value for name, value in broadcast.shared.items() if isinstance(value, Tensor)}),
        own_params={
            **stack_of(
                PRIVATE, {name: task.initial_params[name] for name in task.initial_params if name in task.private}
            ),
            **_personal_of(task, clients, broadcast.shared),
        },
        own_buffers=stack_of(BUFFERS, local),
        own=here({n: value.take(clients) for n, value in broadcast.shared.items() if isinstance(value, PerClient)}),
        states={
            key: here({name: torch.stack([state[key][name] for state in mine]) for name in mine[0][key]})
            for key in parts
        },
        layout=task.layout,
    )


def _personal_of(task: Task, clients: Sequence[int], shared: Shared) -> Tensors:
    """The clients' personal tensors [m, ...]: what the server mixed for each, the initial ones before it ever did."""
    rows = shared.get(PERSONAL)
    if isinstance(rows, PerClient):
        return task.personal.split(rows.take(clients).to(task.device))
    return stacked({name: task.initial_params[name] for name in task.personal.names}, len(clients))


def _samples(task: Task, clients: Sequence[int], split: str) -> Samples:
    """The clients' samples of one split, stacked; shorter ones are padded."""
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
    seed: int,
    phase: Phase,
) -> tuple[Reports, dict[int, ClientState]]:
    """Reports and next states, from the trained models."""
    asked = [report for report in method.reports if phase in report.phases]
    # Evaluation that mixes the samples of a batch must see no padding: then every client is evaluated by itself, and what
    # terms keep is taken from there.
    stacking = [report for report in asked if report.stacks and not (report.evaluates and task.evaluates_in_batches)]
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
            start.received(own_params, own_buffers, sent), params, buffers, states, states, train, validation, steps, loss,
            broadcast.round, task.training.lr, task.training.momentum, task.classes, task.layout, task.personal,
            task.modules["eval"], task.chunks, task.apply, path,
        )  # fmt: skip
        after = {term.key: term.finish(trained) for term in method.terms} if trains else {}
        return trained._replace(next_states={**states, **{key: state for key, state in after.items() if state}})

    def results(reports: Sequence[Report], trained: Trained) -> Reports:
        return {name: value for report in reports for name, value in report(trained).items()}

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
    # A client's rows of a stack would hold the whole stack in memory for as long as one of them is kept.
    rows = tree_map(torch.clone, kept) if len(clients) > 1 else kept
    return _to_server(values), _to_server(rows)


def _start(
    method: Method, task: Task, clients: Sequence[int], broadcast: Broadcast, seed: int
) -> dict[int, ClientState]:
    """The states of clients that take part for the first time."""

    def alone(epochs: int, splits: Sequence[str], stop: Callable[[Tensor], bool]) -> dict[str, Tensor]:
        return _curves_alone(task, clients, broadcast, seed, epochs, splits, stop)

    start = _start_of(task, clients[:1], broadcast, {})
    received = Received(
        {**task.initial_params, **start.params},
        {name: value.to(task.device) for name, value in broadcast.buffers.items()},
        start.shared,
        {},
        task.layout,
    )
    beginning = Beginning(clients, received, alone)
    states: dict[int, ClientState] = {c: {} for c in clients}
    for part in (*method.terms, *method.reports):
        if type(part).start is not ClientPart.start:
            for client, state in zip(clients, part.start(beginning), strict=True):
                if state:
                    states[client][part.key] = state
    return states


def _curves_alone(
    task: Task,
    clients: Sequence[int],
    broadcast: Broadcast,
    seed: int,
    epochs: int,
    splits: Sequence[str],
    stop: Callable[[Tensor], bool],
) -> dict[str, Tensor]:
    """What each client reaches alone: its losses after every epoch, until its training loss says that it may stop.

    All start from the run's first model, also a client that joins late, so that their optima can be compared. Clients are
    trained together until the last of them has stopped.
    """
    m = len(clients)
    training = replace(task.training, epochs=epochs, steps=None)
    held = [{split: getattr(task.federation.clients[c], split).to(task.device) for split in splits} for c in clients]
    sizes = [len(samples["train"]) for samples in held]
    steps = [-(-n // min(training.batch or n, n)) for n in sizes]  # an epoch
    curves = {split: torch.full((m, epochs), torch.nan) for split in splits}
    stopped = [False] * m

    @torch.no_grad()
    def watch(step: int, ids: Sequence[int], params: Tensors, buffers: Tensors) -> bool:
        for place, client in enumerate(ids):
            i = clients.index(client)
            epoch, rest = divmod(step + 1, steps[i])
            if stopped[i] or rest or epoch > epochs:
                continue
            for split, index in held[i].items():
                scores = task.scores(pick(params, place), pick(buffers, place), index)
                curves[split][i, epoch - 1] = scores["loss"].mean()
            stopped[i] = epoch == epochs or stop(curves["train"][i, :epoch])
        return all(stopped)

    fit(
        task, (), clients, _start_of(task, clients, broadcast, {}), params=stacked(task.initial_params, m),
        buffers=stacked(task.initial_buffers, m), round=0, rounds=1, seed=seed, training=training, purpose="alone",
        watch=watch,
    )  # fmt: skip
    return curves


# --------------------------------------------------------------------------- the server's half
@dataclass(frozen=True)
class Aggregated:
    """What the server's rule made of one round."""

    theta: Tensor  # [G], the next model
    before: Tensor  # [G], the model that the clients received
    weights: Tensor  # [m], factors on the shaped updates, any divisor inside
    weighed: Tensor  # [m], what `weigh` gave; a merge may have found weights of its own
    broadcast: Shared  # what `share` computed from the reports alone
    server: Memory  # pass it back next round
    tensor_weights: Tensor | None = None  # [m, tensors], for rules with weights per tensor
    evaluated: Tensor | None = None  # [G], when another iterate than theta is to be scored
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # what the weights came from
    warnings: tuple[str, ...] = ()

    @cached_property
    def direction(self) -> Tensor:
        """`[G]`, exactly the next model minus the one before."""
        return self.theta - self.before


def aggregate(
    method: Method | str,
    theta: Tensor,
    updates: Tensor,
    *,
    clients: Sequence[int],
    reports: Mapping[str, Tensor | Sequence[float]],
    server: Memory | None = None,
    num_clients: int | None = None,
    rounds: int | None = None,
    layout: Layout | Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]] | None = None,
    num_classes: int | None = None,
    num_domains: int | None = None,
    total_samples: int | None = None,
    copy: bool = True,
) -> Aggregated:
    """The server's rule alone, on plain tensors: put it under any framework.

    Args:
        method: what `parse` or a method function gives.
        theta: `[G]`, the model that the clients received.
        updates: `[m, G]`, their models minus `theta`.
        clients: the m ids. Rules with a memory recognise a client by its id.
        reports: stacked values under the names of `equipoise.types.REPORTS`; only what the method needs.
        server: the `.server` of the round before; None in the first round.
        num_clients, rounds, num_classes, num_domains, total_samples: facts of the federation, for rules that need them.
        layout: named tensors and their shapes, for rules that look at tensors one by one. Default: one tensor.
        copy: rules that remember updates (FedFV, FedFE, FedLF) copy them. False saves that, and the caller must not write
            into `updates` afterwards.

    >>> from equipoise import aggregate, parse
    >>> updates = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> result = aggregate(parse("fedavg"), torch.zeros(2), updates, clients=[0, 1],
    ...                    reports={"samples": torch.tensor([1.0, 3.0])})
    >>> result.theta, result.weights
    (tensor([0.2500, 1.5000]), tensor([0.2500, 0.7500]))
    """
    method = parse(method) if isinstance(method, str) else method
    ids = _checked_ids(clients)
    values = {name: torch.as_tensor(value) for name, value in reports.items()}
    for name, value in values.items():
        # the extremes first: they need no memory, and a NaN shows in them
        if value.numel() and not all(map(math.isfinite, (x.item() for x in torch.aminmax(value)))):
            raise EquipoiseError(f"Report `{name}` must be finite. Found {value[~torch.isfinite(value)][0].item()}.")
    if layout is None:
        layout = Layout(("theta",), ((theta.shape[0],),))
    known = Setting(
        rounds=rounds,
        num_clients=num_clients,
        num_classes=num_classes,
        num_domains=num_domains,
        total_samples=total_samples,
        layout=layout if isinstance(layout, Layout) else Layout.of(dict(layout)),
    )
    if copy and method.keeps_updates:
        updates = updates.clone()  # what the server remembers must not change with the caller's tensors
    return _aggregate(method, theta, updates, ids, values, server or Memory(), known, ("probe", "train"))


def _checked_ids(clients: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(c) for c in clients)
    except TypeError:
        raise EquipoiseError(f"Clients are known by whole numbers. Found clients={list(clients)!r}.") from None


def _aggregate(
    method: Method,
    theta: Tensor,
    updates: Tensor,
    clients: tuple[int, ...],
    reports: Reports,
    memory: Memory,
    setting: Setting,
    phases: tuple[Phase, ...] = ("train",),
    merged: Merged | None = None,
) -> Aggregated:
    """`merged` stands for the updates when they have been summed up already."""
    _check_inputs(
        theta, updates if merged is None else merged.direction.expand(len(clients), -1), clients, reports, setting
    )
    round = Round(theta, updates, Updates(updates), clients, reports, memory.round, setting)
    parts = dict(memory.parts)

    def state_of(part: Part) -> Any:
        _check_needs(part, reports)
        return parts.get(part.key, {})

    for shape in method.shape:
        shaped = shape(round, state_of(shape))
        round = round._replace(updates=shaped.updates)
        parts[shape.key] = shaped.state
    weighed = method.weigh(round, state_of(method.weigh))
    parts[method.weigh.key] = weighed.state
    _check_needs(method.merge, reports)
    if merged is None:
        merged = method.merge(round, weighed.weights)
    direction, evaluated = merged.direction, None
    for step in method.step:
        stepped = step(round, direction, state_of(step))
        direction, parts[step.key] = stepped.direction, stepped.state
        evaluated = stepped.evaluated if stepped.evaluated is not None else evaluated
    direction = direction.to(theta.dtype)
    # Without steps nobody else holds the direction, and its memory can become the next model's.
    after = theta + direction if method.step else direction.add_(theta)
    sent, parts = _share(method, round, after, parts, phases)
    weights = weighed.weights
    if merged.tensor_weights is not None:  # weights per tensor: their mean by size
        sizes = (
            torch.tensor([s.stop - s.start for s in setting.layout.slices], dtype=torch.float64)
            if setting.layout
            else 1.0
        )
        weights = (merged.tensor_weights.double() * sizes).sum(1) / theta.shape[0]
    return Aggregated(
        theta=after,
        before=theta,
        weights=weights.to(theta.dtype),
        weighed=weighed.weights,
        broadcast=sent,
        server=Memory(
            memory.round + 1, {key: state for key, state in parts.items() if state}, {**memory.shared, **sent}
        ),
        tensor_weights=merged.tensor_weights,
        evaluated=evaluated,
        figures=weighed.figures,
        warnings=(weighed.warning,) if weighed.warning else (),
    )


def _share(
    method: Method, round: Round, theta: Tensor, parts: dict[str, Any], phases: tuple[Phase, ...]
) -> tuple[Shared, dict[str, Any]]:
    sent: Shared = {}
    for share in method.share:
        if set(phases) & set(share.phases):
            _check_needs(share, round.reports)
            result = share(round, theta, parts.get(share.key, {}))
            sent |= result.shared
            parts[share.key] = result.state
    return sent, parts


def begin(method: Method, task: Task, cohort: int | None = None) -> Server:
    """The server before the first round, with what goes down in it; `cohort` clients take part, by default all."""
    server = task.server()
    shared: Shared = {}
    for share in method.share:
        shared |= share.begin(cohort or len(task.federation))
    return replace(server, memory=Memory(shared=shared))


def broadcast_of(server: Server, rounds: int) -> Broadcast:
    """What the server sends down in its current round."""
    return Broadcast(server.theta, server.buffers, server.memory.shared, server.memory.round, rounds)


def server_probe(method: Method, server: Server, replies: Replies, setting: Setting) -> Server:
    """After a probe: `share` alone."""
    none = server.theta.new_zeros(len(replies.clients), 0)
    round = Round(server.theta, none, Updates(none), replies.clients, replies.reports, server.memory.round, setting)
    sent, parts = _share(method, round, server.theta, dict(server.memory.parts), ("probe",))
    return replace(server, memory=replace(server.memory, parts=parts, shared={**server.memory.shared, **sent}))


def server_round(method: Method, server: Server, replies: Replies, setting: Setting) -> tuple[Server, Aggregated]:
    """The next server, and what the rule made of the round."""
    theta, updates = server.theta, replies.updates
    if replies.total is not None:
        return _server_round_of_sum(method, server, replies, setting)
    assert updates is not None
    averaged = {name: server.buffers[name] for name in replies.buffers}
    floats = Layout.of({name: value for name, value in averaged.items() if value.is_floating_point()})
    together = any(shape.takes_buffers for shape in method.shape) and bool(floats.names)
    if together:  # buffers become further columns of the updates
        theta = torch.cat([theta, floats.join(averaged)])
        moved = floats.join(replies.buffers, lead=1) - floats.join(averaged)
        updates = torch.cat([updates, moved], dim=1)
        layout = setting.layout or Layout(("theta",), ((server.theta.shape[0],),))
        setting = setting._replace(
            layout=Layout(layout.names + floats.names, layout.shapes + floats.shapes, len(layout.names))
        )
    result = _aggregate(method, theta, updates, replies.clients, replies.reports, server.memory, setting)
    size = server.theta.shape[0]
    buffers = {**server.buffers, **_average_buffers(method, replies, result)}
    if together:
        buffers |= floats.split(result.theta[size:])
        result = replace(result, theta=result.theta[:size], before=server.theta)
    return Server(result.theta, buffers, result.server, result.evaluated), result


def _server_round_of_sum(
    method: Method, server: Server, replies: Replies, setting: Setting
) -> tuple[Server, Aggregated]:
    """The same for a method that streams: of the updates only their sum is there."""
    assert replies.total is not None
    weights = method.weigh.raw(replies.reports)
    assert weights is not None
    none = server.theta.new_zeros(len(replies.clients), 0)
    merged = Merged(replies.total / float(weights.sum()))
    result = _aggregate(
        method, server.theta, none, replies.clients, replies.reports, server.memory, setting, merged=merged
    )
    buffers = {**server.buffers, **_average_buffers(method, replies, result)}
    return Server(result.theta, buffers, result.server, result.evaluated), result


def _average_buffers(method: Method, replies: Replies, result: Aggregated) -> Tensors:
    """With the method's weights where they are convex, by samples otherwise."""
    if not method.weigh.simplex:
        return weighted_mean(replies.buffers, shares(replies.reports["samples"]))
    return weighted_mean(replies.buffers, result.weights if method.merge.weighs else result.weighed)


def weighted_mean(stacks: Tensors, weights: Tensor) -> Tensors:
    """Convex averages of `[m, ...]`; a counter takes the largest value."""

    def average(stack: Tensor) -> Tensor:
        if not stack.is_floating_point():
            return stack.amax(0)
        return (weights.to(stack) @ stack.flatten(1)).view(stack.shape[1:])

    return {name: average(stack) for name, stack in stacks.items()}


def _check_inputs(theta: Tensor, updates: Tensor, clients: tuple[int, ...], reports: Reports, setting: Setting) -> None:
    m = len(clients)
    if theta.dim() != 1 or tuple(updates.shape) != (m, theta.shape[0]):
        raise EquipoiseError(
            f"`updates` must be [{m}, {theta.shape[0]}]: one row for each of the {m} clients, as long as theta "
            f"{list(theta.shape)}. Found {list(updates.shape)}."
        )
    if m == 0:
        raise EquipoiseError("A round needs at least one client. Found none.")
    if len(set(clients)) != m:
        raise EquipoiseError(f"Each client counts once a round. Found clients={list(clients)}.")
    if setting.layout is not None and setting.layout.size != theta.shape[0]:
        raise EquipoiseError(f"`layout` describes {setting.layout.size} values, theta has {theta.shape[0]}.")
    for name, value in reports.items():
        if name not in REPORTS:
            raise EquipoiseError(
                f"Unknown report `{name}`.{did_you_mean(name, REPORTS)} Reports: {', '.join(REPORTS)}."
            )
        known = {"m": m, "G": setting.layout.parameter_size if setting.layout else None, "C": setting.num_classes}
        axes = REPORTS[name].axes
        if value.dim() != len(axes) or any(
            known.get(axis) not in (None, size) for axis, size in zip(axes, value.shape, strict=True)
        ):
            wanted = ", ".join(str(known.get(axis) or axis) for axis in axes)
            raise EquipoiseError(f"Report `{name}` must be [{wanted}]. Found {list(value.shape)}.")


def _check_needs(part: Part, reports: Reports) -> None:
    for need in part.needs:
        if need in REPORTS and need not in reports:
            raise EquipoiseError(
                f"`{part.key}` ({part.role}) needs the report `{need}` {REPORTS[need].shape}: {REPORTS[need].meaning}. "
                f'Pass it as reports["{need}"].'
            )
