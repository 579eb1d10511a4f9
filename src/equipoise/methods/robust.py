"""A robust composition for any method: long updates are shortened, those against the cohort do not count.

The rule is Equipoise's own. It takes the geometric median of the round's updates (Pillutla et al., Robust aggregation for
federated learning, IEEE Transactions on Signal Processing 2022) as what the cohort wants, and refuses updates that point
against it; an honest minority, whose updates are merely unlike the others', keeps its influence.
"""

from __future__ import annotations

from equipoise.method import Method, register, require
from equipoise.parts.robust import AgainstCohort

REFERENCE = "Equipoise; the centre is that of Pillutla et al., Robust aggregation for federated learning, TSP 2022"


@register(title="Refuses updates against the cohort, for any method", reference=REFERENCE)
def robust(length: float = 3.0, against: float = 0.68, rounds: int = 5) -> Method:
    """Shortens updates to `length` median lengths (to twice that once a client has been judged), and replaces those of
    clients that go against the cohort.

    A client goes against the cohort if the cosines of its updates with the rounds' centres, over its first `rounds`, are
    below `-against` times the median of those who go along with them. The centre takes the place of its updates.
    """
    require(length >= 1, "length", "at least 1", length)
    require(against >= 0, "against", "at least 0", against)
    require(rounds >= 1, "rounds", "at least 1", rounds)
    return Method(shape=(AgainstCohort(length, against, rounds),))
