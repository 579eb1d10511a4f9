"""Which scores of a site can be true. They are written into records and shown, so each has a name and a range."""

from __future__ import annotations

import re
from collections.abc import Mapping

from equipoise.errors import EquipoiseError
from equipoise.flower.wire import clean
from equipoise.metrics import METRICS

FAR = 1e12  # a loss or an error beyond it measures nothing, and would drown every mean over sites
ROUNDING = 1e-9  # how far a share that was computed may lie above 1
SHARES = frozenset({"accuracy", *METRICS})  # from 0 to 1
AT_MOST_ONE = frozenset({"explained", "r2"})  # 1 is perfect, and there is no worst
ERRORS = frozenset({"loss", "mae", "mse"})  # 0 is perfect
GROUPED = re.compile(r"group (n|right|loss)\[(\d{1,4})((?:,[01]){0,2})\]")  # as `groups.name_counts` writes them
AXES = {"n": 3, "right": 1, "loss": 2}
MOST_NAMES, LONGEST_NAME = 100, 100  # of metrics, beside those of groups


def check_scores(values: Mapping[str, object], samples: int, groups: int) -> dict[str, float]:
    """The scores of one split of a site with so many samples, in so many groups. One that cannot be true is an error.

    >>> check_scores({"accuracy": 0.5, "loss": 1.2}, samples=20, groups=0)
    {'accuracy': 0.5, 'loss': 1.2}
    """
    if len(values) > MOST_NAMES + 7 * groups:
        raise EquipoiseError(f"it sends {len(values)} scores of one split.")
    found: dict[str, float] = {}
    counted = 0.0
    for name, value in values.items():
        if not isinstance(value, float):
            raise EquipoiseError(f"its score `{clean(name)[:LONGEST_NAME]}` is not a number.")
        least, most = _find_range(name, samples, groups)
        if not least <= value <= most:
            raise EquipoiseError(f"its score `{name}` must be from {least:g} to {most:g}. Found {value:g}.")
        if name.startswith("group n["):
            counted += value
            if not value.is_integer() or counted > samples:
                raise EquipoiseError(f"its counts `group n` must be whole numbers of {samples} samples in all.")
        found[name] = value
    return found


def _find_range(name: str, samples: int, groups: int) -> tuple[float, float]:
    """The smallest and the largest value that a metric can have."""
    of_group = GROUPED.fullmatch(name)
    if of_group:
        kind, group, others = of_group.groups()
        if int(group) < groups and 1 + others.count(",") == AXES[kind]:
            return {"n": (0.0, float(samples)), "right": (-FAR, float(samples)), "loss": (0.0, FAR)}[kind]
    measured = name.partition(" of ")[0]  # "accuracy of the averaged-personal model" is an accuracy
    if len(name) <= LONGEST_NAME and name.isprintable():
        if measured in SHARES:
            return 0.0, 1 + ROUNDING
        if measured in AT_MOST_ONE:
            return -FAR, 1 + ROUNDING
        if measured in ERRORS:
            return 0.0, FAR
    raise EquipoiseError(f"it sends a score that is not known: `{clean(name)[:LONGEST_NAME]}`.")
