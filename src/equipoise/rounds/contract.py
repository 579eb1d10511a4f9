"""What a part must keep to: checks of what the server's parts are given and of what they return.

Whoever writes a part must not get wrong numbers silently. Every error here names the part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.columns import ALL, Columns
from equipoise.grammar import did_you_mean
from equipoise.roles import Part, Select, Weigh
from equipoise.types import REPORTS, EquipoiseError, PerClient, Reports, Selected, Setting, Shaped, Turnout
from equipoise.updates import Updates

Kind = TypeVar("Kind")


def check_inputs(
    theta: Tensor,
    updates: Tensor,
    clients: tuple[int, ...],
    reports: Reports,
    setting: Setting,
    columns: Columns = ALL,
) -> None:
    m = len(clients)
    if theta.dim() != 1 or tuple(updates.shape) != (m, theta.shape[0]):
        raise EquipoiseError(
            f"`updates` must be [{m}, {theta.shape[0]}]: one row for each of the {m} clients, as long as theta "
            f"{list(theta.shape)}. Found {list(updates.shape)}."
        )
    if m == 0:
        raise EquipoiseError("A round needs at least one client. Found none.")
    if len(set(clients)) != m:
        raise EquipoiseError(f"Each client counts once per round. Found clients={list(clients)}.")
    size = parameters = None
    if setting.layout is not None:
        whole = slice(0, setting.layout.size), slice(0, setting.layout.parameter_size)
        size, parameters = (here.stop - here.start for here in columns.clip(whole))
    if size not in (None, theta.shape[0]):
        raise EquipoiseError(f"`layout` describes {size} values, theta has {theta.shape[0]}.")
    for name, value in reports.items():
        if name not in REPORTS:
            raise EquipoiseError(
                f"Unknown report `{name}`.{did_you_mean(name, REPORTS)} Reports: {', '.join(REPORTS)}."
            )
        known = {"m": m, "G": parameters, "C": setting.num_classes}
        axes = REPORTS[name].axes
        if value.dim() != len(axes) or any(
            known.get(axis) not in (None, size) for axis, size in zip(axes, value.shape, strict=True)
        ):
            wanted = ", ".join(str(known.get(axis) or axis) for axis in axes)
            raise EquipoiseError(f"Report `{name}` must be [{wanted}]. Found {list(value.shape)}.")


def check_values(theta: Tensor, updates: Tensor, clients: tuple[int, ...], reports: Reports) -> None:
    """Look whether a model, updates and reports are numbers that can be true: see `aggregate`."""
    for name, value in (("theta", theta), ("updates", updates)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
            raise EquipoiseError(f"`{name}` must be a tensor of floating-point numbers. Found {kind}.")
    _refuse_infinite(theta, "`theta`", ())
    _refuse_infinite(updates, "`updates`", clients)
    for name, value in reports.items():
        if value.is_complex():
            raise EquipoiseError(f"Report `{name}` must be real. Found {str(value.dtype).removeprefix('torch.')}.")
        _refuse_infinite(value, f"Report `{name}`", clients)
        means = REPORTS.get(name)
        if means and bool(means.find_impossible(value).any()):
            limit = "must be above zero" if means.is_positive else "cannot be negative"
            raise EquipoiseError(f"Report `{name}` ({means.meaning}) {limit}. Found {float(value.min()):g}.")
    samples = reports.get("samples")
    if samples is not None and samples.numel() and not bool(samples.any()):
        raise EquipoiseError("Report `samples` must be above zero for a client at least. Found zeros.")


def _refuse_infinite(value: Tensor, what: str, clients: tuple[int, ...]) -> None:
    """An error if values are not finite, with the client whose row has the first of them."""
    # Minimum and maximum are enough: a NaN shows in both, and no mask of the tensor's size is needed.
    if not value.numel() or all(math.isfinite(one.item()) for one in torch.aminmax(value)):
        return
    place = (~torch.isfinite(value)).nonzero()[0].tolist()
    whose = f" of client {clients[place[0]]}" if place[0] < len(clients) else ""
    raise EquipoiseError(f"{what} must be finite. Found {value[tuple(place)].item()}{whose}.")


class KnownReports(dict[str, Tensor]):
    """Reports by name. One that no part of the method asked for is an error that says so."""

    def __missing__(self, name: str) -> Tensor:
        raise EquipoiseError(
            f'A part reads the report `{name}`, which nobody sends: the part must say needs=("{name}",). Reports here: '
            f"{', '.join(self) or 'none'}."
        )


class AskedReports(dict[str, Tensor]):
    """The reports of candidates by name. One that the selection did not ask for is an error that says so."""

    def __missing__(self, name: str) -> Tensor:
        raise EquipoiseError(
            f'A selection reads the report `{name}`, which candidates do not make: it must say asks = ("{name}",). '
            f"Reports here: {', '.join(self) or 'none'}."
        )


def check_candidates(part: Select, found: Sequence[int], turnout: Turnout) -> list[int]:
    """The candidates in ascending order. It is an error if one is not available, or there is none."""
    return _check_clients(part, "candidates", found, turnout)


def check_selected(part: Select, selected: Selected, turnout: Turnout) -> list[int]:
    """The selected clients in ascending order. It is an error if one is not available, or there are too many or none."""
    found = _check_clients(part, "clients", selected.clients, turnout)
    if len(found) > turnout.places:
        raise EquipoiseError(
            f"`{part.name}` (select) gives {len(found)} clients for the {turnout.places} places of the round. Take "
            "turnout.places of them."
        )
    return found


def _check_clients(part: Select, what: str, found: Sequence[int], turnout: Turnout) -> list[int]:
    ids = [int(client) for client in found]
    known = turnout.available if isinstance(turnout.available, range) else set(turnout.available)
    strange = [client for client in ids if client not in known]
    if strange:
        raise EquipoiseError(f"`{part.name}` (select) gives the {what} {strange}, which are not in turnout.available.")
    if not ids or len(set(ids)) < len(ids):
        raise EquipoiseError(f"`{part.name}` (select) must give {what}, each of them once. Found {ids}.")
    return sorted(ids)


def check_result(part: Part, found: object, kind: type[Kind]) -> Kind:
    """What a part returned. It is an error if that is not of this kind."""
    if not isinstance(found, kind):
        raise EquipoiseError(
            f"`{part.name}` ({part.role}) must return a {kind.__name__}. Found a {type(found).__name__}."
        )
    return found


def check_rows(part: Part, shaped: Shaped, m: int) -> None:
    if not isinstance(shaped.updates, Updates):
        raise EquipoiseError(
            f"`{part.name}` ({part.role}) must give the updates as an Updates, such as round.updates.with_mask(...). "
            f"Found a {type(shaped.updates).__name__}."
        )
    if len(shaped.updates.rows) != m:
        raise EquipoiseError(
            f"`{part.name}` ({part.role}) must keep one update per client. Found {len(shaped.updates.rows)} for {m} clients."
        )


def check_claims(part: Weigh, weights: Tensor) -> None:
    """Look whether the weights are what their part says of them: buffers are averaged, and other parts rely on it."""
    low, total = float(weights.min()), float(weights.sum())
    if part.is_convex and not (low >= -1e-4 and abs(total - 1) <= 1e-3) and math.isfinite(total):
        raise EquipoiseError(
            f"`{part.name}` (weigh) says that its weights are convex, but they sum to {total:.4g}, the smallest is "
            f"{low:.4g}. Divide them by their sum, or let it say `is_convex = False`."
        )
    if part.is_non_negative and low < -1e-4:
        raise EquipoiseError(
            f"`{part.name}` (weigh) gives the negative weight {low:.4g}. Let it say `is_non_negative = False`."
        )


def weigh_raw(part: Weigh, reports: Reports) -> Tensor:
    """The weights before division by their sum, of a part that has such."""
    weights = part.raw(reports)
    if weights is None:
        raise EquipoiseError(
            f"`{part.name}` (weigh) overrides `raw`, which gave None. Leave `raw` out if the weights need more than each "
            "client's own reports."
        )
    return weights


def check_shape(part: Part, what: str, found: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(found.shape) != wanted:
        raise EquipoiseError(f"`{part.name}` ({part.role}) must give {what} {list(wanted)}. Found {list(found.shape)}.")


def check_needs(part: Part, reports: Reports) -> None:
    for need in part.needs:
        if need in REPORTS and need not in reports:
            raise EquipoiseError(
                f"`{part.name}` ({part.role}) needs the report `{need}` {REPORTS[need].shape}: "
                f'{REPORTS[need].meaning}. Pass it as reports["{need}"].'
            )


def check_remembered(part: Part, name: str, value: object, before: object) -> None:
    """Look whether a value of a part's next state is a tensor, or one per client, of the shape that it had `before`."""
    old = before if isinstance(before, PerClient) else PerClient()
    # Rows that are still the same were looked at before.
    rows: list[object] = value.list_new(old) if isinstance(value, PerClient) else [value]
    kinds = {describe_kind(row) for row in rows}
    first = [old[client] for client in old.list_clients()[:1]] if isinstance(before, PerClient) else [before]
    known = {describe_kind(row) for row in first}
    same = before is None or (type(value) is type(before) and (not rows or not known or kinds == known))
    if not same or len(kinds) > 1 or not all(isinstance(row, Tensor) for row in rows):
        was = "" if before is None else f", and was {' or '.join(known)}"
        per_client = " per client" if isinstance(value, PerClient) else ""
        raise EquipoiseError(
            f"`{part.name}` ({part.role}) must remember tensors of one shape, or one row per client. `{name}` is "
            f"{' or '.join(sorted(kinds))}{per_client}{was}."
        )


def describe_kind(value: object) -> str:
    """The kind of a value, in words for messages."""
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
