"""What a reader of results should know about the clients of a user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from equipoise.grammar import join_words

if TYPE_CHECKING:
    from equipoise.data.federation import Client

FEW_TESTS = 10  # with fewer test samples, one right or wrong answer moves the accuracy by more than ten points


def remark_on_clients(
    clients: Sequence[Client], y: Tensor, classes: Sequence[str], where: Mapping[str, str] | None = None
) -> list[str]:
    """Notes that name clients with a single class, with few test samples or none, and classes that only one client
    holds. `where` says where a client's data lie."""

    def name(client: Client, more: str = "") -> str:
        said = ": ".join(text for text in ((where or {}).get(client.name, ""), more) if text)
        return f"`{client.name}`" + (f" ({said})" if said else "")

    held = {client.name: set(y[client.train].unique().tolist()) for client in clients}
    single = [name(c, classes[min(held[c.name])]) for c in clients if len(held[c.name]) == 1]
    untested = [name(c) for c in clients if len(c.test) == 0]
    few = [name(c, str(len(c.test))) for c in clients if 0 < len(c.test) < FEW_TESTS]
    holders = {k: [c for c in clients if k in held[c.name]] for k in range(len(classes))}
    lone = [f"{classes[k]} (`{who[0].name}`)" for k, who in holders.items() if len(who) == 1 and len(clients) > 1]
    notes = {
        "Clients with a single class to learn from": single,
        "Clients with too few rows to test on, which get no score": untested,
        f"Clients with fewer than {FEW_TESTS} test samples, whose accuracy is coarse": few,
        "Classes that only one client can learn from": lone,
    }
    return [f"{text}: {join_words(found)}." for text, found in notes.items() if found]
