"""The server's half of a round, as a pure function, and `aggregate`, which does the same on plain tensors."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from equipoise.columns import ALL, Columns
from equipoise.method import Method
from equipoise.methods import parse
from equipoise.parts.weights import shares
from equipoise.roles import Phase
from equipoise.rounds.contract import (
    KnownReports,
    check_claims,
    check_inputs,
    check_needs,
    check_result,
    check_rows,
    check_shape,
    check_values,
    describe_kind,
    weigh_raw,
)
from equipoise.rounds.parts import Parts
from equipoise.task import Task
from equipoise.types import (
    Broadcast,
    EquipoiseError,
    Layout,
    Memory,
    Merged,
    PerClient,
    Replies,
    Reports,
    Round,
    Sent,
    Server,
    Setting,
    Shaped,
    Shared,
    Stepped,
    Tensors,
    Weighed,
)
from equipoise.updates import Updates


@dataclass(frozen=True)
class Aggregated:
    """The result of the server's half of a round."""

    theta: Tensor  # [G], the next model
    before: Tensor  # [G], the model that the clients received
    weights: Tensor  # [m], the factor on each shaped update, with any divisor applied; with `tensor_weights` their mean
    weighed: Tensor  # [m], the weights by the `weigh` part, even if the merge found others
    broadcast: Shared  # what the `share` parts send to the clients beside the next model
    server: Memory  # what the server remembers; pass it back in the next round
    tensor_weights: Tensor | None = None  # [m, tensors], for merges that weigh each tensor by itself
    evaluated: Tensor | None = None  # [G], the model to score if it is not theta
    refused: Tensor | None = None  # [m] bool, whom a `shape` part refused
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # values behind weights and steps, [m] or [] each
    warnings: tuple[str, ...] = ()  # what a reader of the results should know

    @cached_property
    def direction(self) -> Tensor:
        """The next model minus the one before, `[G]`."""
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
    check: bool = True,
) -> Aggregated:
    """Do the server's half of a round on plain tensors, for use in any other framework.

    Shapes, names and ids are always checked. So are values, unless `check=False`: `theta`, updates and reports must be
    real and finite; losses, counts and Fisher values not negative; some client must have samples; and the next model
    must be finite. Nothing else is: that a report is true, or that an update is no longer than it should be, cannot be
    seen here. `equipoise.engine.checks` compares clients with each other, as a deployment does.

    Args:
        method: a method, or its name such as `"fedavg"`, with parameters if any.
        theta: `[G]`, the model that the clients received.
        updates: `[m, G]`, the clients' models after training, minus `theta`.
        clients: ids of the m clients. Methods with a memory recognise a client by its id.
        reports: `[m, ...]` each, by the names of `equipoise.types.REPORTS`; only those that the method needs.
        server: the `.server` of the round before; None in the first round.
        num_clients, rounds, num_classes, num_domains, total_samples: facts about the run, for methods that need them.
        layout: names and shapes of the tensors in `theta`, for methods that treat tensors one by one. Default: one
            tensor.
        copy: whether to copy what a method remembers of `updates` and `reports` (FedFV, FedFE and FedLF do). False
            saves the copies, but then the caller must not write into these tensors afterwards.
        check: whether to check values, too. False is for callers that have done it: what is not finite, or cannot be
            true, then gives a model that is wrong without a word.

    >>> updates = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> result = aggregate(parse("fedavg"), torch.zeros(2), updates, clients=[0, 1],
    ...                    reports={"samples": torch.tensor([1.0, 3.0])})
    >>> result.theta, result.weights
    (tensor([0.2500, 1.5000]), tensor([0.2500, 0.7500]))
    """
    method = parse(method) if isinstance(method, str) else method
    ids = _checked_ids(clients)
    values = {name: torch.as_tensor(value) for name, value in reports.items()}
    if check:
        check_values(theta, updates, ids, values)
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
    memory = server or Memory()
    strange = set(memory.parts) - {part.key for part in method.parts}
    if strange:
        raise EquipoiseError(
            f"`server` remembers something for `{min(strange)}`, which is no part of `{method}`: pass back the "
            "`.server` of the same method."
        )
    # What the server remembers must not change if the caller writes into these tensors.
    lent = (updates, *values.values()) if copy else ()
    result = _aggregate(method, theta, updates, ids, values, memory, known, ("probe", "train"), lent=lent)
    if check and not bool(torch.isfinite(result.theta).all()):
        raise EquipoiseError(
            f"`{method}` gives a model that is not finite: the updates are too long for {theta.dtype}, or its parameters "
            "let it diverge."
        )
    return result


def _checked_ids(clients: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(c) for c in clients)
    except TypeError:
        raise EquipoiseError(f"Client ids must be whole numbers. Found clients={list(clients)!r}.") from None


def _aggregate(
    method: Method,
    theta: Tensor,
    updates: Tensor | None,
    clients: tuple[int, ...],
    reports: Reports,
    memory: Memory,
    setting: Setting,
    phases: tuple[Phase, ...] = ("train",),
    merged: Merged | None = None,
    lent: Sequence[Tensor] = (),
    columns: Columns = ALL,
) -> Aggregated:
    """Run the parts of the server in their order: shape, weigh, merge, step and share; then the selection remembers.

    `merged` is given instead of the updates where these have been summed already. What parts remember of the
    `lent` tensors is copied, because the memory of these tensors is not the server's own. `columns` are those that `theta`,
    the updates and the result have.
    """
    rows = updates if updates is not None else None if merged is None else merged.direction.expand(len(clients), -1)
    assert rows is not None
    check_inputs(theta, rows, clients, reports, setting, columns)
    stack = None if updates is None else Updates(updates, columns=columns)
    weights = memory.find_loss_weights(clients)
    round = Round(theta, clients, KnownReports(reports), memory.round, setting, updates, stack, columns, weights)
    parts = Parts(memory, reports, lent)
    figures: dict[str, Tensor] = {}
    refused: Tensor | None = None
    for shape in method.shape:
        shaped = check_result(shape, shape(round, parts.state_of(shape)), Shaped)
        check_rows(shape, shaped, len(clients))
        round = replace(round, shaped_rows=shaped.updates)
        if shape.comes_first:
            rows = shaped.updates.shaped
            round = replace(round, reported_rows=rows, shaped_rows=Updates(rows, columns=columns))
        if shaped.refused is not None and bool(shaped.refused.any()) and not bool(shaped.refused.all()):
            refused = shaped.refused
            round = replace(round, reports=KnownReports(take_middle(reports, refused)))
        figures |= shaped.figures
        parts.remember(shape, shaped.state)
    weighed = check_result(method.weigh, method.weigh(round, parts.state_of(method.weigh)), Weighed)
    check_shape(method.weigh, "weights", weighed.weights, (len(clients),))
    check_claims(method.weigh, weighed.weights)
    parts.remember(method.weigh, weighed.state)
    check_needs(method.merge, reports)
    if merged is None:
        merged = check_result(method.merge, method.merge(round, weighed.weights), Merged)
        check_shape(method.merge, "a direction", merged.direction, tuple(theta.shape))
    figures |= weighed.figures
    direction, evaluated = merged.direction, None
    for step in method.step:
        stepped = check_result(step, step(round, direction, parts.state_of(step)), Stepped)
        direction = stepped.direction
        check_shape(step, "a direction", direction, tuple(theta.shape))
        parts.remember(step, stepped.state)
        evaluated = stepped.evaluated if stepped.evaluated is not None else evaluated
        figures |= stepped.figures
    direction = direction.to(theta.dtype)
    # Without steps nobody else uses the direction, so that the next model can be computed in its memory, unless a merge
    # gave back the memory of something else.
    taken = {tensor.untyped_storage().data_ptr() for tensor in (theta, *(() if updates is None else (updates,)))}
    is_own = direction.untyped_storage().data_ptr() not in taken
    after = direction.add_(theta) if is_own and not method.step else theta + direction
    evaluated = None if evaluated is None else parts.own(evaluated)
    sent, told = _share(method, round, after, parts, phases)
    figures |= told
    parts.remember(method.select, method.select.remember(round, parts.state_of(method.select)))
    weights = weighed.weights
    if merged.tensor_weights is not None:  # the mean of the weights per tensor, by the sizes of the tensors
        places = setting.layout.slices if setting.layout else (slice(0, theta.shape[0]),)
        sizes = torch.tensor([place.stop - place.start for place in places], dtype=torch.float64)
        weights = (merged.tensor_weights.double() * sizes).sum(1) / sizes.sum()
    return Aggregated(
        theta=after,
        before=theta,
        weights=weights.to(theta.dtype),
        weighed=weighed.weights,
        broadcast=sent,
        server=Memory(memory.round + 1, parts.remembered, {**memory.shared, **sent}),
        tensor_weights=merged.tensor_weights,
        evaluated=evaluated,
        refused=refused,
        figures=figures,
        warnings=(weighed.warning,) if weighed.warning else (),
    )


def _share(
    method: Method, round: Round, theta: Tensor, parts: Parts, phases: tuple[Phase, ...]
) -> tuple[Shared, Tensors]:
    """Call the `share` parts of these phases: what they send to the clients, and the figures behind it."""
    sent: dict[str, Tensor | PerClient] = {}
    figures: Tensors = {}
    for share in method.share:
        if set(phases) & set(share.phases):
            result = check_result(share, share(round, theta, parts.state_of(share)), Sent)
            for name, value in result.shared.items():
                if name in sent:
                    raise EquipoiseError(f"`{share.name}` (share) sends `{name}`, which another part sends already.")
                if not isinstance(value, (Tensor, PerClient)):
                    raise EquipoiseError(
                        f"`{share.name}` (share) can send tensors, or one row per client. `{name}` is {describe_kind(value)}."
                    )
                own, columns = parts.own_any(value), round.columns if name in (share.by_columns or ()) else ALL
                sent[name] = make_whole(own, columns)
            parts.remember(share, result.state)
            figures |= result.figures
    return sent, figures


def make_whole(value: Tensor | PerClient, columns: Columns) -> Tensor | PerClient:
    """What a part remembers or sends that has an entry per parameter, with all columns."""
    return value.change(columns.whole) if isinstance(value, PerClient) else columns.whole(value)


def begin_server(method: Method, task: Task, cohort: int | None = None) -> Server:
    """The server before the first round, with what the `share` parts send in it.

    `cohort` clients take part in the first round. Default: all.
    """
    server = task.server()
    shared: Shared = {}
    for share in method.share:
        shared |= share.begin(cohort or len(task.federation))
    return replace(server, memory=Memory(shared=shared))


def make_broadcast(server: Server, rounds: int, lr: float | None = None) -> Broadcast:
    """What the server sends to clients in its current round, of `rounds` planned for the run.

    `lr` is the local learning rate of this round. Default: the one of the task's training.
    """
    return Broadcast(server.theta, server.buffers, server.memory.shared, server.memory.round, rounds, lr)


def server_probe(method: Method, server: Server, replies: Replies, setting: Setting) -> tuple[Server, Tensors]:
    """The server after a probe, in which only the `share` parts of that phase are called; and their figures."""
    theta, columns = replies.columns.cut(server.theta), replies.columns
    round = Round(theta, replies.clients, replies.reports, server.memory.round, setting, columns=columns)
    parts = Parts(server.memory, replies.reports)
    sent, figures = _share(method, round, theta, parts, ("probe",))
    shared = {**server.memory.shared, **sent}
    return replace(server, memory=replace(server.memory, parts=parts.remembered, shared=shared)), figures


def server_round(method: Method, server: Server, replies: Replies, setting: Setting) -> tuple[Server, Aggregated]:
    """Do the server's half of a round: the next server, and the details of how it came about."""
    if method.streams:
        return _server_round_of_sum(method, server, add_up(method, replies), setting)
    theta, updates, columns = server.theta, replies.updates, replies.columns
    assert updates is not None
    averaged = {name: server.buffers[name] for name in replies.buffers}
    floats = Layout.of({name: value for name, value in averaged.items() if value.is_floating_point()})
    together = any(shape.includes_buffers for shape in method.shape) and bool(floats.names)
    if together:  # averaged buffers become further columns of the updates
        here = columns.clip([slice(theta.shape[0], theta.shape[0] + floats.size)])[0]
        count = here.stop - here.start  # buffers are beside the last parameters: all of them are here, or none
        theta = torch.cat([theta, floats.join(averaged)])
        moved = floats.join(replies.buffers, lead=1) - floats.join(averaged)
        updates = torch.cat([updates, moved[:, :count]], dim=1)
        layout = setting.layout or Layout(("theta",), ((server.theta.shape[0],),))
        setting = setting._replace(
            layout=Layout(layout.names + floats.names, layout.shapes + floats.shapes, len(layout.names))
        )
    lent = (updates,) if replies.is_lent else ()
    result = _aggregate(
        method, columns.cut(theta), updates, replies.clients, replies.reports, server.memory, setting, lent=lent,
        columns=columns,
    )  # fmt: skip
    result = _complete(result, theta, columns)
    size = server.theta.shape[0]
    buffers = {**server.buffers, **_average_buffers(method, replies, result)}
    if together:
        buffers |= floats.split(result.theta[size:])
        result = replace(result, theta=result.theta[:size], before=server.theta)
    return Server(result.theta, buffers, result.server, result.evaluated), result


def _complete(result: Aggregated, before: Tensor, columns: Columns) -> Aggregated:
    """The result with the models of all columns. What parts remember stays with the columns."""
    evaluated = None if result.evaluated is None else columns.whole(result.evaluated)
    return replace(result, theta=columns.whole(result.theta), before=before, evaluated=evaluated)


def add_up(method: Method, replies: Replies) -> Replies:
    """The replies with the weighted sum of the updates in place of the updates, for a method that streams.

    Updates are added one by one, in the order of the clients, so that the same rows give the same bits whoever adds them.
    """
    if replies.total is not None or replies.updates is None:
        return replies
    weights = weigh_raw(method.weigh, replies.reports)
    total = torch.zeros_like(replies.updates[0])
    for weight, update in zip(weights.to(total.dtype), replies.updates, strict=True):
        total += weight * update
    return replace(replies, updates=None, total=total)


def _server_round_of_sum(
    method: Method, server: Server, replies: Replies, setting: Setting
) -> tuple[Server, Aggregated]:
    """Do the server's half of a round for a method that streams: only the weighted sum of the updates is known."""
    assert replies.total is not None
    weights = weigh_raw(method.weigh, replies.reports)
    columns, merged = replies.columns, Merged(replies.total / float(weights.sum()))
    result = _aggregate(
        method, columns.cut(server.theta), None, replies.clients, replies.reports, server.memory, setting, merged=merged,
        columns=columns,
    )  # fmt: skip
    result = _complete(result, server.theta, columns)
    expected = (weights / weights.sum()).to(result.weighed)
    if not torch.allclose(result.weighed, expected, rtol=1e-4, atol=1e-7):
        raise EquipoiseError(
            f"`{method.weigh.name}` (weigh) gives other weights than its `raw`, divided by their sum: "
            f"{result.weighed.tolist()[:3]}, and {expected.tolist()[:3]}. Leave `raw` out, or let both say the same."
        )
    buffers = {**server.buffers, **_average_buffers(method, replies, result)}
    return Server(result.theta, buffers, result.server, result.evaluated), result


def _average_buffers(method: Method, replies: Replies, result: Aggregated) -> Tensors:
    """The means of the clients' buffers, with the method's weights where these are convex, otherwise by samples."""
    weights = shares(replies.reports["samples"])
    if method.weigh.is_convex:
        weights = result.weights if method.merge.uses_weights else result.weighed
    if result.refused is not None:
        weights = shares(torch.where(result.refused, 0.0, weights))
    return weighted_mean(replies.buffers, weights)


def take_middle(reports: Reports, refused: Tensor) -> Tensors:
    """The reports in which the refused clients (`[m]` bool) say what the middle one of the others says.

    >>> take_middle({"loss": torch.tensor([1.0, 2.0, 3.0, 99.0])}, torch.tensor([False, False, False, True]))
    {'loss': tensor([1., 2., 3., 2.])}
    """

    def replaced(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[refused] = value[~refused].median(0).values
        return changed

    return {name: replaced(value) for name, value in reports.items()}


def weighted_mean(stacks: Tensors, weights: Tensor) -> Tensors:
    """The means over clients of stacked tensors `[m, ...]`, with weights `[m]`. Of integers (counters) the largest is
    taken."""

    def average(stack: Tensor) -> Tensor:
        if not stack.is_floating_point():
            return stack.amax(0)
        return (weights.to(stack) @ stack.flatten(1)).view(stack.shape[1:])

    return {name: average(stack) for name, stack in stacks.items()}
