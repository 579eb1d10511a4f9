"""Generated incomes: persons in several states, two sexes, and a model that can guess the sex from other columns."""

from __future__ import annotations

import torch

from equipoise import seeds
from equipoise.data.arrays import Groups
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Protocol
from equipoise.grammar import require
from equipoise.training import Training

SHARES = (0.5, 0.2, 0.3)  # training, validation and test
COLUMNS = ("age", "education", "hours", "office", "trade", "married")


def incomes(clients: int = 5, samples: int = 600, bias: float = 1.0, seed: int = 0) -> Federation:
    """Persons with a high or low income in several states, in groups by sex. Generated; no file is needed.

    The columns are those of a census: age, years of education, weekly hours, two occupations, marriage. Women work
    fewer hours and in other occupations, so that a model which does not see the sex still knows a good deal of it;
    `bias` is how much less a woman earns than a man with the same columns, in units of the noise. States differ in size
    (the last one has a third of the first one's `samples`), in the share of women, and in what education pays.
    """
    require(clients >= 2, "clients", "at least 2", clients)
    require(samples >= 60, "samples", "at least 60", samples)
    require(bias >= 0, "bias", "at least 0", bias)
    x, y, sex, found, start = [], [], [], [], 0
    for k in range(clients):
        place = k / (clients - 1)
        count = round(samples * (1 - 2 / 3 * place))
        draw = seeds.generator(seed, "incomes", k)

        def flip(chance: torch.Tensor, draw: torch.Generator = draw) -> torch.Tensor:
            return (torch.rand(len(chance), generator=draw) < chance).float()

        def noise(count: int = count, draw: torch.Generator = draw) -> torch.Tensor:
            return torch.randn(count, generator=draw)

        woman = flip(torch.full((count,), 0.35 + 0.2 * place))
        age, education = noise(), noise()
        hours = noise() - 0.8 * woman
        office, trade = flip(0.3 + 0.4 * woman), flip(0.5 - 0.4 * woman)
        married = flip(0.6 - 0.25 * woman)
        pay = 0.5 * age + (0.9 - 0.4 * place) * education + 0.7 * hours + 0.8 * married + 0.4 * trade - bias * woman
        x.append(torch.stack([age, education, hours, office, trade, married], 1))
        y.append((pay + noise() > 0.8).long())
        sex.append(1 - woman.long())
        sizes = [round(share * count) for share in SHARES[:2]]
        parts = (start + torch.randperm(count, generator=draw)).split([*sizes, count - sum(sizes)])
        found.append(Client(f"state {k + 1}", *(part.sort().values for part in parts)))
        start += count
    return Federation(
        "incomes", torch.cat(x), torch.cat(y), tuple(found), ("low", "high"),
        Protocol(40, 1.0, Training(batch=32, lr=0.1), "linear"),
        notes=("Generated data: no person is behind a row.",),
        groups=Groups("sex", ("female", "male"), torch.cat(sex)),
    )  # fmt: skip
