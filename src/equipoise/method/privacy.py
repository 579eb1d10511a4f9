"""What each method lets the server see of a site, and whether it works with secure aggregation or differential privacy.

All of this follows from what a method's parts declare, so that a new method is covered without further work.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from equipoise.grammar import did_you_mean
from equipoise.method.registry import METHODS
from equipoise.method.value import Method, reason_for_rows
from equipoise.types import REPORTS, EquipoiseError

# How the updates of sites are protected: not at all, by secure aggregation, or by differential privacy.
Protection = Literal["none", "secure-aggregation", "differential-privacy"]


class Revealed(NamedTuple):
    """What the server sees of each site in a round."""

    update: Literal["only in a weighted sum", "each"]  # whether the server sees the single updates
    reports: tuple[str, ...]  # names (in `REPORTS`) of the values that it sees for each site
    kept: tuple[str, ...]  # what it remembers about each site between rounds, in words


def list_revealed(method: Method) -> Revealed:
    """What the server must see of each site for this method to work.

    >>> from equipoise.methods import parse
    >>> list_revealed(parse("fedavg"))
    Revealed(update='only in a weighted sum', reports=('samples',), kept=())
    >>> list_revealed(parse("qffl")).update
    'each'
    """
    names = tuple(dict.fromkeys(name for report in method.reports for name in report.gives if name in REPORTS))
    kept = tuple(dict.fromkeys(part.remembers for part in method.parts if part.remembers))
    return Revealed("only in a weighted sum" if method.streams else "each", names, kept)


def find_obstacle(method: Method, protection: Protection) -> str | None:
    """Why a method does not work with a protection, in words; None if it does.

    With secure aggregation the server sees only `sum(w * update)` and `sum(w)`, and each site finds its own weight `w`.
    So the method must need nothing but that sum, and the weight must depend on the site's own reports only. The number
    of samples is hidden in the sum; any other report would be sent unprotected. Differential privacy of the sum has the
    same conditions: it needs a bound on what one site contributes, which nothing sent outside of the sum has.
    """
    if protection == "none":
        return None
    if method.is_pooled:
        return "it trains on all data in one place"
    if why := reason_for_rows(method):
        return why
    extra = [name for name in list_revealed(method).reports if name != "samples"]
    if extra:
        return f"sites report {', '.join(f'`{name}`' for name in extra)} each by itself, outside of the sum"
    return None


def refuse_unprotected(method: Method, protection: Protection) -> None:
    """Raise an error, with the reason, if a method does not work with a protection."""
    if protection not in get_args(Protection):
        raise EquipoiseError(
            f"Protection must be one of {', '.join(get_args(Protection))}. Found {protection!r}."
            + did_you_mean(str(protection), get_args(Protection))
        )
    why = find_obstacle(method, protection)
    if why:
        able = [name for name, entry in METHODS.items() if find_obstacle(entry.function(), protection) is None]
        raise EquipoiseError(
            f"`{method}` does not work under {protection.replace('-', ' ')}: {why}. Methods that do: {', '.join(able)}."
        )


def write_table() -> str:
    """What each registered method reveals of a site, as a table in Markdown."""
    lines = [
        "| method | the update | reported by each site | remembered of each site | secure aggregation, differential privacy |"
    ]
    lines.append("|---|---|---|---|---|")
    for name, entry in METHODS.items():
        method = entry.function()
        found = list_revealed(method)
        why = find_obstacle(method, "secure-aggregation")
        verdict = "yes" if why is None else f"no: {why}"
        update = "all data" if method.is_pooled else found.update
        cells = (f"`{name}`", update, ", ".join(found.reports), ", ".join(found.kept) or "-", verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
