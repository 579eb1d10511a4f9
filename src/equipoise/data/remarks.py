"""What a reader of results should know about the clients of a user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from equipoise.grammar import join_words

FEW_TESTS = 10  # with fewer test samples, one right or wrong answer moves the accuracy by more than ten points


def remark_on_clients(
    labels: Mapping[str, Tensor], tests: Mapping[str, int], classes: Sequence[str], where: Mapping[str, str]
) -> list[str]:
    """Notes that name clients with a single class, with few test samples or none, and classes that only one client
    holds.

    Args:
        labels: client -> the labels of its training samples.
        tests: client -> how many test samples it has.
        classes: the names of the classes.
        where: client -> where its data lie, if that is worth saying.
    """

    def name(client: str, more: str = "") -> str:
        said = ": ".join(text for text in (where.get(client, ""), more) if text)
        return f"`{client}`" + (f" ({said})" if said else "")

    held = {client: set(mine.unique().tolist()) for client, mine in labels.items()}
    single = [name(client, classes[min(mine)]) for client, mine in held.items() if len(mine) == 1]
    untested = [name(client) for client, count in tests.items() if count == 0]
    few = [name(client, str(count)) for client, count in tests.items() if 0 < count < FEW_TESTS]
    holders = {k: [client for client, mine in held.items() if k in mine] for k in range(len(classes))}
    lone = [f"{classes[k]} (`{who[0]}`)" for k, who in holders.items() if len(who) == 1 and len(held) > 1]
    notes = {
        "Clients with a single class to learn from": single,
        "Clients with too few rows to test on, which get no score": untested,
        f"Clients with fewer than {FEW_TESTS} test samples, whose accuracy is coarse": few,
        "Classes that only one client can learn from": lone,
    }
    return [f"{text}: {join_words(found)}." for text, found in notes.items() if found]
