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

from equipoise.data.cache import UNREAD, Pictures, PictureSet, open_pool
from equipoise.data.federation import Client, Federation, Preparation, Protocol, Split, number_parts
from equipoise.data.files import list_class_names
from equipoise.data.images import Images
from equipoise.data.partitions import by_id, split_three_ways
from equipoise.data.partitions import deal as dealt
from equipoise.data.pieces import Piece, find_pieces, find_site_pieces
from equipoise.data.site_schemas import SiteSchema, describe_rows
from equipoise.data.tables import (
    LIMIT,
    Rows,
    Schema,
    as_text,
    encode,
    infer_schema,
    list_misfits,
    note_unknown_levels,
    order_classes,
)
from equipoise.errors import EquipoiseError
from equipoise.grammar import Mistakes, did_you_mean, join_words, require
from equipoise.training import Training

SHARES = (0.6, 0.2, 0.2)  # training, validation and test, where the data have no test part of their own
MOST_CLASSES = 1_000  # a label column with more different values hardly holds classes
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
    client: str | None = None,
    domain: str | None = None,
    image_size: int | None = None,
    ignore: tuple[str, ...] = (),
    partition: str | None = None,
    schema: str | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    site: str | None = None,
) -> Federation:
    """Your own data: image folders, tables with a label column, or a data set of the Hugging Face hub.

    `label`, `client` and `domain` name columns; by default the columns of these names are used. `ignore` lists columns
    to leave out. `partition` deals out rows that belong to no client, for example `dirichlet(clients=10, alpha=0.5)`.
    Images become squares of `image_size` pixels. `schema` is a file that an earlier run wrote. `skip_bad` leaves out
    images that cannot be read, and says which. With `site` the path holds the data of a single client, which gets this
    name.
    """
    require(image_size is None or image_size >= 1, "image_size", "at least 1", image_size)
    notes: list[str] = []
    pieces = find_pieces(path, notes) if site is None else find_site_pieces(path, site, notes)
    fixed = Schema.read(Path(schema)) if schema else None
    target = label or (fixed.label if fixed else "label")
    mistakes = Mistakes()  # all that does not fit a given schema is said at once
    with mistakes.noted():
        y, classes = _labels(pieces, target, fixed)
    if fixed:
        whole = (Rows(piece.client or "", piece.where, piece.table) for piece in pieces)
        mistakes.found += [misfit for rows in whole for misfit in list_misfits(rows, fixed)]
    mistakes.refuse()
    holdings = _dealt(pieces, partition, y) if partition else _held(pieces, client or "client", path)
    domains = _domains(holdings, domain)
    readable = torch.ones(len(y), dtype=torch.bool)
    digest = ""
    if all(piece.images for piece in pieces):
        images = open_pool(f"own {Path(path).name}", _parts(pieces), image_size, skip_bad)
        x, digest, readable = images.x, images.digest, images.y != UNREAD
        notes += images.notes
        clients = _clients(holdings, y, readable, domains, seed)
        agreed = fixed or Schema(target, classes, {})
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
        apart = {client or "client", domain or "domain", *ignore}
        agreed, x, unknown = _features(holdings, clients, len(y), target, classes, apart, fixed)
        notes += unknown
        preparation, protocol = Preparation(), TABLE_PROTOCOL
    notes += _remarks(clients, y, classes, holdings)
    return Federation(
        Path(path).stem, x, y, clients, classes, protocol, preparation, tuple(notes), digest, agreed.as_json()
    )


def describe_own(
    path: str, label: str = "label", ignore: Collection[str] = (), limit: int = LIMIT
) -> tuple[SiteSchema, list[str]]:
    """What a site tells of its own data before a federation begins, and notes for the site itself.

    Columns named `client` and `domain`, and those in `ignore`, are left out, as `own` leaves them out.
    """
    notes: list[str] = []
    pieces = find_site_pieces(path, "this site", notes)
    labels, _ = _label_texts(pieces, label)
    rows, _ = _rows("this site", _held(pieces, "client", path))
    apart = {"client", "domain", *ignore, *(rows.table.column_names if all(piece.images for piece in pieces) else ())}
    found, more = describe_rows(rows, label, labels, apart, limit)
    return found, [*notes, *more]


def _parts(pieces: Sequence[Piece]) -> list[PictureSet]:
    """The images of every piece, as the cache takes them."""

    def load(piece: Piece) -> Pictures:
        assert piece.images is not None
        images = piece.images()

        def name(i: int) -> str:
            image = images[i]
            place = f"`{image}`" if isinstance(image, Path) else f"in row {i} of {piece.where}"
            owner = piece.client if piece.client is not None else piece.table.slice(i, 1).to_pylist()[0].get("client")
            return place if owner is None else f"{place} (client `{owner}`)"

        return Pictures(images, [0] * len(images), name)

    names = [f"{piece.client or piece.files[0].stem}/{number}" for number, piece in enumerate(pieces)]
    return [PictureSet(name, piece.files, partial(load, piece)) for name, piece in zip(names, pieces, strict=True)]


# --------------------------------------------------------------------------- labels, owners, domains
def _label_texts(pieces: Sequence[Piece], label: str) -> tuple[list[str], tuple[str, ...] | None]:
    """The label of every row, and the names of the classes where a file declares them."""
    texts: list[str] = []
    declared: tuple[str, ...] | None = None
    for piece in pieces:
        columns = piece.table.column_names
        place = piece.where + (f" (client `{piece.client}`)" if piece.client else "")
        if label not in columns:
            raise EquipoiseError(
                f"{place} has no label column `{label}`.{did_you_mean(label, columns)} Name it with --label. There "
                f"are: {join_words(columns, 12)}."
            )
        values = piece.table[label].to_pylist()
        if None in values:
            raise EquipoiseError(f"Row {values.index(None)} of {place} has no label. Fill it, or remove the row.")
        fraction = next((v for v in values if isinstance(v, float) and not v.is_integer()), None)
        if fraction is not None:
            raise EquipoiseError(
                f"Labels must be classes. Found {fraction} in column `{label}` of {place}: group such values first."
            )
        names = list_class_names(piece.table, label)
        declared = declared or names
        texts += [names[v] if names and isinstance(v, int) and 0 <= v < len(names) else as_text(v) for v in values]
    return texts, declared


def _labels(pieces: Sequence[Piece], label: str, fixed: Schema | None) -> tuple[Tensor, tuple[str, ...]]:
    """The class of every row, and the names of the classes."""
    texts, declared = _label_texts(pieces, label)
    classes = fixed.classes if fixed else declared or order_classes(texts)
    unknown = sorted(set(texts) - set(classes))
    if unknown:
        raise EquipoiseError(
            f"Label {join_words([repr(one) for one in unknown])} is not one of the classes: "
            f"{join_words(list(classes), 12)}."
        )
    if len(set(texts)) < 2 and not fixed:  # with a schema, these may be the rows of one site among several
        raise EquipoiseError(f"Every row has the label {texts[0]!r}: there is nothing to learn.")
    if len(classes) > MOST_CLASSES:
        raise EquipoiseError(
            f"Column `{label}` has {len(classes)} different values: too many for classes. Name another one."
        )
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[text] for text in texts]), classes


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
        names = piece.table[column].to_pylist()
        if None in names:
            raise EquipoiseError(f"Row {names.index(None)} of {piece.where} has no client in column `{column}`.")
        for name, rows in by_id([as_text(value) for value in names]).items():
            found.append(Holding(name, piece, rows, start + rows))
    return sorted(found, key=lambda holding: order_by_number(holding.client))


def order_by_number(name: str) -> list[tuple[int, str]]:
    """A sort key that puts `site 10` behind `site 2`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _dealt(pieces: Sequence[Piece], rule: str, y: Tensor) -> list[Holding]:
    """Deal out all rows together by a partition rule."""
    found = []
    offsets = _offsets(pieces)
    for name, part in number_parts(dealt(rule, y)).items():
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
        for value in dict.fromkeys(as_text(v) for v in holding.values(column or "domain")):
            if found.setdefault(holding.client, value) != value:
                raise EquipoiseError(
                    f"Client `{holding.client}` ({holding.piece.where}) is of two domains: {found[holding.client]} and {value}."
                    " A client belongs to one."
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
            train, aside, test = split_three_ways(train, shares, seed, "own", name, labels=y[train])
            validation = torch.cat([validation, aside])
        clients.append(Client(name, train, validation, test, domains.get(name, "")))
    return tuple(clients)


def _features(
    holdings: Sequence[Holding],
    clients: Sequence[Client],
    size: int,
    label: str,
    classes: tuple[str, ...],
    apart: set[str],
    fixed: Schema | None,
) -> tuple[Schema, Tensor, list[str]]:
    """The schema of the columns, every client's rows as features, and notes on values that the schema does not name."""
    together = {client.name: _rows(client.name, [h for h in holdings if h.client == client.name]) for client in clients}
    schema = fixed or infer_schema([rows for rows, _ in together.values()], label, classes, apart)
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
    return Rows(client, where, table), torch.cat([h.positions for h in holdings])


def _remarks(clients: Sequence[Client], y: Tensor, classes: Sequence[str], holdings: Sequence[Holding]) -> list[str]:
    """Notes that name clients with a single class, and clients without test data."""
    where = {holding.client: holding.piece.where for holding in holdings}
    single = [
        f"`{c.name}` ({where[c.name]}: {classes[int(y[c.train[0]])]})"
        for c in clients
        if len(c.train) and len(y[c.train].unique()) == 1
    ]
    untested = [f"`{c.name}` ({where[c.name]})" for c in clients if len(c.test) == 0]
    notes = []
    if single:
        notes.append(f"Clients with a single class to learn from: {join_words(single)}.")
    if untested:
        notes.append(f"Clients with too few rows to test on, which get no score: {join_words(untested)}.")
    return notes
