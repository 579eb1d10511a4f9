"""Your own data: a folder with one sub-folder per client, a table with a client column, or a data set of the Hugging
Face hub."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from equipoise.data.arrays import standardise
from equipoise.data.cache import UNREAD, Pictures, PictureSet, open_pool
from equipoise.data.clients import Client, Split
from equipoise.data.federation import Federation, Preparation, Protocol, number_parts
from equipoise.data.images import Images
from equipoise.data.missing import drop_missing as leave_out
from equipoise.data.missing import note_missing
from equipoise.data.partitions import by_id, split_three_ways
from equipoise.data.partitions import deal as dealt
from equipoise.data.pieces import Piece, find_pieces, find_site_pieces
from equipoise.data.remarks import remark_on_clients, remark_on_groups
from equipoise.data.site_schemas import SiteSchema, describe_rows
from equipoise.data.tables import (
    LIMIT,
    Rows,
    Schema,
    as_text,
    encode,
    infer_schema,
    list_misfits,
    note_odd_texts,
    note_unknown_levels,
)
from equipoise.data.targets import Wanted, note_classes, read_groups, read_label_texts, read_targets, refuse_gaps
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, join_words, require
from equipoise.losses import USUAL, Target
from equipoise.training import Training

SHARES = (0.6, 0.2, 0.2)  # training, validation and test, where the data have no test part of their own
IMAGE_PROTOCOL = Protocol(30, 1.0, Training(batch=32, lr=0.02, momentum=0.9), "resnet10(width=16)", "own images")
TABLE_PROTOCOL = Protocol(50, 1.0, Training(batch=16, lr=0.05), "mlp(hidden=(32,))", "own table")


@dataclass(frozen=True, eq=False)
class Holding:
    """The rows of one client in one piece of the data (a table, say)."""

    client: str
    piece: Piece
    rows: Tensor  # their numbers in the piece
    positions: Tensor  # their numbers in the whole data

    def values(self, column: str) -> list[object]:
        """The values of these rows in a column."""
        return list(self.piece.table[column].take(pa.array(self.rows.numpy())).to_pylist())


def own(
    path: str,
    label: str | None = None,
    target: tuple[str, ...] = (),
    group: str | None = None,
    group_in_model: bool = False,
    client: str | None = None,
    domain: str | None = None,
    image_size: int | None = None,
    ignore: tuple[str, ...] = (),
    partition: str | None = None,
    schema: str | None = None,
    skip_bad: bool = False,
    drop_missing: bool = False,
    seed: int = 0,
    site: str | None = None,
) -> Federation:
    """Your own data: image folders, tables with a label column, or a data set of the Hugging Face hub.

    `label`, `client` and `domain` name columns; by default the columns of these names are used. `target` names what is
    to be predicted where it is no class: one column of numbers, or several columns of 0 and 1. `group` names a column
    that puts rows into groups, which are compared; it does not enter the model unless `group_in_model` says so.
    `ignore` lists columns to leave out. `partition` deals out rows that belong to no client, for example
    `dirichlet(clients=10, alpha=0.5)`. Images become squares of `image_size` pixels. `schema` is a file that an earlier
    run wrote. `skip_bad` leaves out images that cannot be read, and says which; `drop_missing` leaves out rows of tables
    with a missing value, and says how many of which client. With `site` the path holds the data of a single client,
    which gets this name.
    """
    require(image_size is None or image_size >= 1, "image_size", "at least 1", image_size)
    notes: list[str] = []
    pieces = find_pieces(path, notes) if site is None else find_site_pieces(path, site, notes)
    fixed = Schema.read(Path(schema)) if schema else None
    wanted = Wanted.of(label, target, fixed)
    marked = group or (fixed.group if fixed else "")
    if marked in wanted.columns:
        raise EquipoiseError(
            f"Column `{marked}` cannot be both what is predicted and the group. Name another column with --group."
        )
    owner = None if partition or site else client or "client"
    used = _list_used(pieces, wanted.columns, owner, domain or "domain", ignore, fixed)
    if drop_missing:
        pieces, dropped = leave_out(pieces, used, owner, counted=site is None)
        notes += dropped
    elif not any(piece.images for piece in pieces):
        notes += note_missing(
            pieces, [name for name in used if name not in (*wanted.columns, owner)], counted=site is None
        )
    mistakes = Mistakes()  # all that does not fit a given schema is said at once
    with mistakes.noted():
        y, classes = read_targets(pieces, wanted, fixed)
    groups = None
    with mistakes.noted():
        groups = read_groups(pieces, marked, fixed) if marked else None
    if fixed:
        whole = (Rows(piece.client or "", piece.where, piece.table, piece.name_row) for piece in pieces)
        mistakes.found += [misfit for rows in whole for misfit in list_misfits(rows, fixed)]
    mistakes.refuse()
    holdings = _dealt(pieces, partition, y, wanted.kind) if partition else _held(pieces, client or "client", path)
    domains = _domains(holdings, domain)
    readable = torch.ones(len(y), dtype=torch.bool)
    digest = ""
    if all(piece.images for piece in pieces):
        images = open_pool(f"own {Path(path).name}", _parts(pieces), image_size, skip_bad)
        x, digest, readable = images.x, images.digest, images.y != UNREAD
        notes += images.notes
        clients = _clients(holdings, y, readable, domains, seed)
        agreed = fixed or Schema(wanted.label, classes, {}, wanted.kind)
        preparation: Preparation = Images((0.5,), (0.5,), pad=max(1, x.shape[-1] // 8))
        protocol = IMAGE_PROTOCOL
    elif any(piece.images for piece in pieces):
        some = next(piece for piece in pieces if piece.images)
        other = next(piece for piece in pieces if not piece.images)
        raise EquipoiseError(
            f"{some.where} holds images, {other.where} does not. One model learns from one kind of data."
        )
    else:
        clients = _clients(holdings, y, readable, domains, seed)
        apart = {client or "client", domain or "domain", *ignore, *([] if group_in_model else [marked])}
        fewest = 1 if site is None else LIMIT  # what a single site holds rarely stays there
        agreed, x, unknown = _features(holdings, clients, len(y), wanted, classes, apart, fixed, fewest)
        notes += unknown
        preparation, protocol = Preparation(), TABLE_PROTOCOL
        notes += note_odd_texts(agreed)
    where = {holding.client: holding.piece.where for holding in holdings} if len(pieces) > 1 else {}
    labels = {c.name: y[c.train] for c in clients} if wanted.kind == "classes" else {}
    notes += remark_on_clients(labels, {c.name: len(c.test) for c in clients}, classes, where)
    if groups:
        tested = {c.name: groups.of[c.test] for c in clients}
        notes += remark_on_groups(groups.name, groups.names, groups.of, tested)
        agreed = replace(agreed, group=groups.name, groups=groups.names)
    numbers = y if wanted.kind == "number" and not agreed.spread else None
    if wanted.kind == "number":
        notes += note_classes(y, wanted.label)
        y, agreed = _scale_numbers(y, clients, agreed)
    protocol = replace(protocol, loss=USUAL[wanted.kind])
    return Federation(
        Path(path).stem, x, y, clients, classes, protocol, preparation, tuple(notes), digest, agreed.as_json(),
        centre=agreed.centre, spread=agreed.spread or 1.0, groups=groups, numbers=numbers,
    )  # fmt: skip


def _scale_numbers(numbers: Tensor, clients: Sequence[Client], schema: Schema) -> tuple[Tensor, Schema]:
    """The numbers to predict, standardised as the schema says, and the schema; if it does not say it, it will."""
    if schema.spread > 0:
        return ((numbers - schema.centre) / schema.spread).float(), schema
    y, centre, spread = standardise(numbers, [client.train for client in clients])
    return y, replace(schema, centre=centre, spread=spread)


def describe_own(
    path: str, label: str = "label", ignore: Collection[str] = (), limit: int = LIMIT
) -> tuple[SiteSchema, list[str]]:
    """What a site tells of its own data before a federation begins, and notes for the site itself.

    Columns named `client` and `domain`, and those in `ignore`, are left out, as `own` leaves them out.
    """
    notes: list[str] = []
    pieces = find_site_pieces(path, "this site", notes)
    labels, _ = read_label_texts(pieces, label)
    rows, _ = _rows("this site", _held(pieces, "client", path))
    apart = {"client", "domain", *ignore, *(rows.table.column_names if all(piece.images for piece in pieces) else ())}
    found, more = describe_rows(rows, label, labels, apart, limit)
    return found, [*notes, *more]


def _list_used(
    pieces: Sequence[Piece],
    targets: Sequence[str],
    owner: str | None,
    domain: str,
    ignore: Sequence[str],
    fixed: Schema | None,
) -> list[str]:
    """The columns that something is read from. One that is to be ignored and is not there is an error."""
    present = list(dict.fromkeys(name for piece in pieces for name in piece.table.column_names))
    for name in ignore:
        if name not in present:
            raise EquipoiseError(
                f"There is no column `{name}` to ignore.{did_you_mean(name, present)} There are: {join_words(present, 12)}."
            )
    known = {*present} if fixed is None else {*targets, owner, domain, fixed.group, *fixed.columns}
    left = {*ignore, *(() if owner else ("client",))} - {*targets}
    return [name for name in present if name in known and name not in left]


def _parts(pieces: Sequence[Piece]) -> list[PictureSet]:
    """The images of every piece, as the cache takes them."""

    def load(piece: Piece) -> Pictures:
        assert piece.images is not None
        images = piece.images()

        def name(i: int) -> str:
            image = images[i]
            place = f"`{image}`" if isinstance(image, Path) else f"in {piece.name_row(i)} of {piece.where}"
            owner = piece.client if piece.client is not None else piece.table.slice(i, 1).to_pylist()[0].get("client")
            return place if owner is None else f"{place} (client `{owner}`)"

        return Pictures(images, [0] * len(images), name)

    names = [f"{piece.client or piece.files[0].stem}/{number}" for number, piece in enumerate(pieces)]
    return [PictureSet(name, piece.files, partial(load, piece)) for name, piece in zip(names, pieces, strict=True)]


# --------------------------------------------------------------------------- owners and domains
def _offsets(pieces: Sequence[Piece]) -> list[int]:
    return np.cumsum([0, *(len(piece.table) for piece in pieces)]).tolist()


def _held(pieces: Sequence[Piece], column: str, path: str) -> list[Holding]:
    """Who holds which rows, as the folders or a column say."""
    found = []
    for piece, start in zip(pieces, _offsets(pieces), strict=False):
        if piece.client is not None:
            rows = torch.arange(len(piece.table))
            found.append(Holding(piece.client, piece, rows, start + rows))
            continue
        columns = piece.table.column_names
        if column not in columns:
            raise EquipoiseError(
                f"{piece.where} has no client column `{column}`.{did_you_mean(column, columns)} Name it with --client (there "
                f'are: {join_words(columns, 12)}), or deal its rows out with --partition "dirichlet(clients=10, alpha=0.5)".'
            )
        refuse_gaps(piece, column, "client")
        names = piece.table[column].to_pylist()
        for name, rows in by_id([as_text(value) for value in names]).items():
            found.append(Holding(name, piece, rows, start + rows))
    return sorted(found, key=lambda holding: order_by_number(holding.client))


def order_by_number(name: str) -> list[tuple[int, str]]:
    """A sort key that puts `site 10` behind `site 2`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _dealt(pieces: Sequence[Piece], rule: str, y: Tensor, kind: Target) -> list[Holding]:
    """Deal out all rows together by a partition rule. A rule that looks at classes sees one class where there are none."""
    labels = y if kind == "classes" else torch.zeros(len(y), dtype=torch.long)
    found = []
    offsets = _offsets(pieces)
    for name, part in number_parts(dealt(rule, labels)).items():
        for piece, start, end in zip(pieces, offsets, offsets[1:], strict=False):
            mine = part[(part >= start) & (part < end)]
            if len(mine):
                found.append(Holding(name, replace(piece, split=None), mine - start, mine))
    return found


def _domains(holdings: Sequence[Holding], column: str | None) -> dict[str, str]:
    """The domain of each client, if there is a column for it."""
    found: dict[str, str] = {}
    for holding in holdings:
        if (column or "domain") not in holding.piece.table.column_names:
            if column:
                raise EquipoiseError(
                    f"{holding.piece.where} has no domain column `{column}`."
                    f"{did_you_mean(column, holding.piece.table.column_names)}"
                )
            continue
        refuse_gaps(holding.piece, column or "domain", "domain")
        for value in dict.fromkeys(as_text(v) for v in holding.values(column or "domain")):
            if found.setdefault(holding.client, value) != value:
                raise EquipoiseError(
                    f"Client `{holding.client}` ({holding.piece.where}) is of two domains: "
                    f"{found[holding.client]!r} and {value!r}. A client belongs to one."
                )
    return found


# --------------------------------------------------------------------------- clients and features
def _clients(
    holdings: Sequence[Holding], y: Tensor, readable: Tensor, domains: Mapping[str, str], seed: int
) -> tuple[Client, ...]:
    """The clients with their training, validation and test parts: as the names of files say, or divided at random where
    a client has no test part."""
    clients = []
    for name in dict.fromkeys(holding.client for holding in holdings):
        parts: dict[Split, list[Tensor]] = {"train": [], "validation": [], "test": []}
        for holding in holdings:
            if holding.client == name:
                parts[holding.piece.split or "train"].append(holding.positions[readable[holding.positions]])
        empty = torch.zeros(0, dtype=torch.long)
        train, validation, test = (torch.cat([empty, *parts[split]]) for split in ("train", "validation", "test"))
        if len(test) == 0 and len(train):
            shares = (SHARES[0], 0.0, SHARES[2]) if len(validation) else SHARES
            train, aside, test = split_three_ways(
                train, shares, seed, "own", name, labels=None if y.is_floating_point() else y[train]
            )
            validation = torch.cat([validation, aside])
        clients.append(Client(name, train, validation, test, domains.get(name, "")))
    return tuple(clients)


def _features(
    holdings: Sequence[Holding],
    clients: Sequence[Client],
    size: int,
    wanted: Wanted,
    classes: tuple[str, ...],
    apart: set[str],
    fixed: Schema | None,
    fewest: int,
) -> tuple[Schema, Tensor, list[str]]:
    """The schema of the columns, every client's rows as features, and notes on values that the schema does not name.

    A schema that is not given names only levels of at least `fewest` rows.
    """
    together = {client.name: _rows(client.name, [h for h in holdings if h.client == client.name]) for client in clients}
    schema = fixed or infer_schema([rows for rows, _ in together.values()], wanted.columns, classes, apart, fewest)
    schema = replace(schema, target=wanted.kind)
    x = torch.zeros(size, schema.width)
    notes = []
    for client in clients:
        rows, positions = together[client.name]
        x[positions] = encode(rows, schema, torch.isin(positions, client.train).nonzero()[:, 0])
        notes += note_unknown_levels(rows, schema) if fixed else []
    return schema, x, notes


def _rows(client: str, holdings: Sequence[Holding]) -> tuple[Rows, Tensor]:
    """All rows of one client as one table, and their positions in the whole data."""
    tables = [h.piece.table.replace_schema_metadata().take(pa.array(h.rows.numpy())) for h in holdings]
    where = join_words(list(dict.fromkeys(h.piece.where for h in holdings)), 2)
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        for name in tables[0].column_names:
            kinds = {str(t.schema.field(name).type) if name in t.column_names else "missing" for t in tables}
            if len(kinds) > 1:
                raise EquipoiseError(
                    f"Column `{name}` is {' and '.join(sorted(kinds))} in the files of client `{client}` ({where}). Make it "
                    f"one kind, or leave it out with --ignore {name}."
                ) from None
        raise

    def name_row(row: int) -> str:
        for holding in holdings:
            if row < len(holding.rows):
                place = holding.piece.name_row(int(holding.rows[row]))
                return place if len(holdings) == 1 else f"{place} of {holding.piece.where}"
            row -= len(holding.rows)
        raise IndexError(row)

    return Rows(client, where, table, name_row), torch.cat([h.positions for h in holdings])
