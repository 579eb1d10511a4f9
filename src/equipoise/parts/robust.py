"""Updates that stand against the cohort: how they are found, and what takes their place.

Fair methods lend weight to the client that is served worst, and so to one that attacks. Two things tell an attacker from a
minority without looking at data: how long its update is, and whether it points *against* the cohort. A minority's update
is unlike those of the others, so that it stands about upright on the cohort's centre. A reversed update points away from
the centre as strongly as honest ones point along it.

Only inner products are needed: the edited updates are rows of coefficients over the reported ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.roles import Shape
from equipoise.types import Round, Shaped, State

COHORT = 4  # with fewer clients nobody can be told to stand against the others
STEPS = 50  # of the iteration for the centre; it changes by less than a thousandth after about twenty
LOOKS = 5  # at who goes along with the centre; two were enough in all that was measured


def find_centre(gram: Tensor) -> Tensor:
    """The geometric median of updates with inner products `gram [m, m]`, as coefficients `[m]` that add up to one.

    It is the point with the smallest sum of distances to all updates (Weiszfeld's iteration). Less than half of the
    clients cannot move it far, whatever they send.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-9.0, 0.0]], dtype=torch.float64)
    >>> float((find_centre(rows @ rows.T) @ rows)[0].round(decimals=3))
    1.0
    """
    squares = gram.diagonal()
    shares = torch.full_like(squares, 1 / len(squares))
    smallest = 1e-12 * squares.max().clamp(min=torch.finfo(gram.dtype).tiny)  # an update may lie in the centre
    for _ in range(STEPS):
        along = gram @ shares
        distances = (squares - 2 * along + shares @ along).clamp(min=smallest).sqrt()
        shares = 1 / distances
        shares = shares / shares.sum()
    return shares


def find_company(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The centre of those who go along with it, as coefficients `[m]` over all, and everybody's cosines `[m]` with it.

    Several reversed updates shorten and turn the centre of all, and then do not seem to go against it. So the centre is
    found once more without those that point away from it, as long as half of the clients are left.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.5], [-1.0, -0.5]], dtype=torch.float64)
    >>> [round(value, 3) for value in find_company(rows @ rows.T)[0].tolist()]
    [0.5, 0.5, 0.0, 0.0]
    """
    along = torch.ones(len(gram), dtype=torch.bool)
    for _ in range(LOOKS):
        centre = torch.zeros_like(gram[0])
        centre[along] = find_centre(gram[along][:, along])
        products = gram @ centre
        lengths = (gram.diagonal() * (centre @ products)).clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
        cosines, before = products / lengths, along
        along = cosines > 0
        if torch.equal(along, before) or 2 * int(along.sum()) < len(gram):
            break
    return centre, cosines


def find_scales(loss_weights: Tensor | None, count: int) -> Tensor:
    """By what the updates `[m]` of `count` clients are divided before they are compared.

    A client that was sent a weight for its loss (EAGLE's) trains as many times as far, and backwards if the weight is
    negative: that is the server's doing. One that was sent a small weight may still be as long as the others.

    >>> find_scales(torch.tensor([-2.0, 0.0, 0.5, 3.0], dtype=torch.float64), 4)
    tensor([-2.,  1.,  1.,  3.], dtype=torch.float64)
    """
    if loss_weights is None:
        return torch.ones(count, dtype=torch.float64)
    weights = loss_weights.double()
    return torch.where(weights < 0, -1.0, 1.0) * weights.abs().clamp(min=1)


def clip_lengths(squares: Tensor, limit: float | Tensor) -> Tensor:
    """Factors `[m]` that bring updates of squared lengths `squares [m]` down to `limit` times the median length, for all or
    per client.

    >>> clip_lengths(torch.tensor([1.0, 1.0, 4.0, 100.0], dtype=torch.float64), 2.0)
    tensor([1.0000, 1.0000, 1.0000, 0.2000], dtype=torch.float64)
    """
    lengths = squares.sqrt()
    longest = limit * lengths.median()
    return torch.where(lengths > longest, longest / lengths, 1.0)


@dataclass(frozen=True)
class AgainstCohort(Shape, by_columns=()):
    """Shortens long updates, and puts the cohort's centre in place of those of clients that go against it.

    A client's direction is the sum of the cosines between its updates and the rounds' centres, divided by the sum of the
    median cosines of those who go along with these, over the first `rounds` in which it takes part. It goes against the
    cohort if that is below `-against`. Only its first rounds can tell: where a model has converged, all updates together
    are nothing, so that an honest minority pulls exactly against the others. By then its updates are long, too: whoever was
    judged may send twice the length.
    """

    comes_first: ClassVar[bool] = True  # other parts see only what it lets through
    finds_attackers: ClassVar[bool] = True

    length: float = 3.0  # largest length of an update, in medians of the round; twice that of a client that was judged
    # How strongly a client may go against the centre, beside how strongly others go along with it.
    against: float = 0.68
    rounds: int = 5  # in which a client is judged

    @property
    def remembers(self) -> str:
        """Sums over its first rounds."""
        return "whether it went along with the others at first"

    def __call__(self, round: Round, state: State) -> Shaped:
        updates, m = round.updates, len(round.clients)
        if m < COHORT:
            return Shaped(updates, state)
        scales = find_scales(round.loss_weights, m)
        compared = updates.gram / scales / scales[:, None]
        even = clip_lengths(compared.diagonal(), 1.0)  # long updates have no more say in what the cohort wants
        centre, cosines = find_company(compared * even * even[:, None])
        usual = cosines[cosines > 0].median() if bool((cosines > 0).any()) else cosines.new_zeros(())
        before = state.rows("sums", default=cosines.new_zeros(3))
        sums = before.take(round.clients).to(cosines)  # of its cosines, of the medians, and how many rounds
        is_new = sums[:, 2] < self.rounds  # who is still being judged
        factors = clip_lengths(compared.diagonal(), torch.where(is_new, 1.0, 2.0) * self.length)
        sums = sums + is_new[:, None] * torch.stack([cosines, usual.expand(m), torch.ones_like(cosines)], 1)
        refused = sums[:, 0] < -self.against * sums[:, 1]
        coefficients = torch.diag(factors)
        coefficients[refused] = scales[refused, None] * (centre * even / scales)
        direction = sums[:, 0] / sums[:, 1].clamp(min=torch.finfo(sums.dtype).tiny)
        return Shaped(
            updates.with_coefficients(coefficients),
            {"sums": before.put(round.clients, sums)},
            {"shortened to": factors, "direction": direction.clamp(-9, 9), "stands against": refused.double()},
            refused,
        )
