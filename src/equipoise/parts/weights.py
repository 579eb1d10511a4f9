"""Weightings that several methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise.roles import Weigh
from equipoise.types import EquipoiseError, PerClient, Reports, Round, State, Weighed


def shares(values: Tensor) -> Tensor:
    """Non-negative values divided by their sum; equal shares if all are zero.

    >>> shares(torch.tensor([1.0, 3.0])), shares(torch.zeros(2))
    (tensor([0.2500, 0.7500]), tensor([0.5000, 0.5000]))
    """
    total = values.sum()
    return torch.where(total > 0, values / total.clamp(min=torch.finfo(values.dtype).tiny), 1 / len(values))


def place_clients(round: Round, who: str) -> tuple[int, Tensor]:
    """How many clients the federation has, and the places `[m]` of the round's clients in a tensor of one value for each.

    A client's place is its id. `who` needs it, which an error says.
    """
    total = int(round.known("num_clients", who))
    if not all(0 <= client < total for client in round.clients):
        raise EquipoiseError(
            f"{who} numbers the clients from 0 to {total - 1}, for num_clients={total}. Found {round.clients}."
        )
    return total, torch.tensor(round.clients, dtype=torch.long)


def lay_out(rows: PerClient, total: int, first: Tensor) -> Tensor:
    """One value for each of all clients, `[N, ...]`, in the order of their ids: `first` for those that have none yet."""
    return torch.stack([rows.get(client, first) for client in range(total)])


@dataclass(frozen=True)
class BySamples(Weigh, needs=("samples",), by_columns=()):
    """A client's weight is its share of the round's training samples, `n_k / sum_j n_j`. This is FedAvg's weighting."""

    rank: ClassVar[int] = 0

    def raw(self, reports: Reports) -> Tensor:
        """The numbers of samples."""
        return reports["samples"].double()

    def __call__(self, round: Round, state: State) -> Weighed:
        samples = self.raw(round.reports)
        return Weighed(shares(samples), figures={"samples": samples})


@dataclass(frozen=True)
class Uniform(Weigh, by_columns=()):
    """The same weight `1/m` for each of the round's m clients."""

    rank: ClassVar[int] = 1

    def raw(self, reports: Reports) -> Tensor:
        """One for each client."""
        return torch.ones_like(reports["samples"], dtype=torch.float64)

    def __call__(self, round: Round, state: State) -> Weighed:
        m = len(round.clients)
        return Weighed(torch.full((m,), 1 / m, dtype=torch.float64))


@dataclass(frozen=True)
class PowerOfLoss(Weigh, by_columns=()):
    """q-FFL's weights, with their divisor: `w_k = L F_k^q / sum_j (q F_j^(q-1) ||L h_j||^2 + L F_j^q)`, `L = 1/lr`.

    `F_k` is the client's loss of the received model and `h_k` its shaped update; `L h_k` stands for the gradient. With
    `scale="raw"` (equation 8 of FedFE as printed) `h_k` itself stands for it: `w_k = F_k^q / sum_j (q F_j^(q-1)
    ||h_j||^2 + L F_j^q)`.
    """

    q: float  # the larger, the more a client with a large loss counts; 0: equal weights
    lr: float | None = None  # the rate behind L; None: the local learning rate of the run
    scale: Literal["lr", "raw"] = "lr"  # what stands for the gradient: L times the update, or the update
    loss: Literal["loss", "loss_trained"] = "loss"  # of the received model, or of the trained one

    @property
    def needs(self) -> tuple[str, ...]:
        """The loss that is raised to a power."""
        return (self.loss,)

    @property
    def is_convex(self) -> bool:
        """False: the weights do not sum to one."""
        return False

    def __call__(self, round: Round, state: State) -> Weighed:
        rate = self.lr if self.lr is not None else round.setting.lr
        if rate is None:
            raise EquipoiseError(
                "q-weighting needs the local rate `lr` (L = 1/lr): write it into the method, as in fedfe(lr=0.1)."
            )
        loss = round.reports[self.loss].double() + 1e-10
        if not bool((loss > 0).all()):
            raise EquipoiseError(f"q-weighting needs losses above zero. Found {self.loss}={(loss - 1e-10).tolist()}.")
        # Powers are taken of losses relative to the largest one, which then cancels: no overflow for any q.
        power = (loss / loss.max()) ** self.q
        L = 1 / rate
        gain = L if self.scale == "lr" else 1.0
        divisor = (self.q * power / loss * gain**2 * round.updates.squared_norms() + L * power).sum()
        return Weighed(gain * power / divisor, figures={self.loss: loss})
