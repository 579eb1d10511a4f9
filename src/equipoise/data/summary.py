"""A federation for the terminal: who holds how much, and how it is trained."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from equipoise.data.catalogue import DATASETS, list_presets
from equipoise.data.federation import Federation
from equipoise.grammar import join_words

SHOWN = 40  # clients that a table lists at most


def draw_clients(data: Federation) -> Table:
    """A table of who holds how much."""
    table = Table(
        "client", "domain", "training", "validation", "test", "classes", title_justify="left",
        title=f"{escape(data.name)}: {len(data)} clients, {len(data.domains)} domains, {len(data.classes)} classes",
    )  # fmt: skip
    held = (data.class_counts() > 0).sum(1).tolist()
    for client, classes in list(zip(data.clients, held, strict=True))[:SHOWN]:
        sizes = (str(len(part)) for part in (client.train, client.validation, client.test))
        table.add_row(escape(client.name), escape(client.domain), *sizes, str(classes))
    if len(data) > SHOWN:
        table.add_row("...", "", "", "", "", "")
    return table


def list_facts(data: Federation, name: str) -> list[str]:
    """Lines that say what the data are and how they are trained. `name` is the text that they were loaded from."""
    protocol, training = data.protocol, data.protocol.training
    amount = f"{training.epochs} epochs" if training.steps is None else f"{training.steps} steps"
    batch = "full batch" if training.batch is None else f"batches of {training.batch}"
    others = list_presets(name)
    entry = DATASETS.get(data.name)
    return [
        *([f"Source: {escape(entry.reference)}."] if entry else []),
        f"Samples {'x'.join(map(str, data.input_shape))}, classes {escape(join_words(data.classes, 12))}.",
        f"Protocol [bold]{protocol.name}[/]: {protocol.rounds} rounds, {100 * protocol.participation:.0f} % of the clients in "
        f"each, {amount}, {batch}, {training.optimizer} {training.lr}, model {escape(protocol.model)}."
        + (f" Presets: {', '.join(others)}." if others else ""),
        f"Fingerprint {data.fingerprint}, partition {data.partition}.",
    ]
