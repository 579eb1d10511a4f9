"""What a reader of results should know about the clients of a user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.grammar import join_words

FEW_IN_GROUP = 10  # a rate of fewer samples is not shown
FEW_TESTS = 10  # with fewer test samples, one right or wrong answer moves an accuracy by more than ten points


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
        f"Clients with fewer than {FEW_TESTS} test samples, whose score is coarse": few,
        "Classes that only one client can learn from": lone,
    }
    return [f"{text}: {join_words(found)}." for text, found in notes.items() if found]


def remark_on_groups(column: str, names: Sequence[str], of: Tensor, tests: Mapping[str, Tensor]) -> list[str]:
    """Notes that name groups with few test samples at all clients together, and clients that lack a group.

    Args:
        column: what the groups are groups of.
        names: the names of the groups.
        of: the group of each sample, `[n]`.
        tests: client -> the groups of its test samples.
    """
    total = torch.bincount(torch.cat(list(tests.values())), minlength=len(names)).tolist()
    rows = torch.bincount(of, minlength=len(names)).tolist()
    few = [
        f"`{name}` ({count} test samples of {all_of_them} rows)"
        for name, count, all_of_them in zip(names, total, rows, strict=True)
        if count < FEW_IN_GROUP
    ]
    lacking = [
        f"`{client}` ({join_words([names[z] for z in missing])})"
        for client, held in tests.items()
        if len(held) and (missing := [z for z in range(len(names)) if not bool((held == z).any())])
    ]
    notes = {
        f"Groups of `{column}` with fewer than {FEW_IN_GROUP} test samples, which get no figures": few,
        f"Clients without test samples of some group of `{column}`": lacking,
    }
    return [f"{text}: {join_words(found)}." for text, found in notes.items() if found]
