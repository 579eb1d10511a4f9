"""FedFE: conflict projection as in FedFV, q-weights as in q-FFL, and a server momentum that decays to nothing.

As resolved from the paper: updates are scaled by `L = 1/lr` (so that q = 0 without conflicts is FedAvg), losses are those of
the received model, and eq. 16 is read as heavy-ball momentum with a decaying coefficient; taken literally it multiplies the
*model* by the coefficient and destroys it (`momentum="literal"` shows that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from equipoise.method import EquipoiseError, Method, Round, State, Step, Stepped, register, require
from equipoise.parts.conflicts import ExternalConflicts, InternalConflicts
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.steps import LengthOfMean, ServerRate
from equipoise.parts.weights import PowerOfLoss


def decayed(beta_init: float, t: int, rounds: int) -> float:
    """The momentum coefficient of round t: `beta_init` at first, 0 at the end (DEMON's schedule).

    >>> decayed(0.1, 0, 10), round(decayed(0.1, 5, 10), 4), decayed(0.1, 10, 10)
    (0.1, 0.0526, 0.0)
    """
    left = beta_init * max(0.0, 1 - t / rounds)
    return left / (1 - beta_init + left)


@dataclass(frozen=True)
class DecayingMomentum(Step):
    """`v <- beta_t v + direction`, and the model moves by `v`."""

    reads_updates: ClassVar[bool] = False

    beta_init: float
    literal: bool = False

    def __call__(self, round: Round, direction: Tensor, state: State) -> Stepped:
        if self.beta_init == 0 and not self.literal:
            return Stepped(direction)
        beta = decayed(self.beta_init, round.round, int(round.known("rounds", "fedfe's decaying momentum")))
        if self.literal:
            return Stepped(direction + (beta - 1) * round.theta)
        velocity = direction + beta * state.tensor("velocity") if "velocity" in state else direction
        return Stepped(velocity, {"velocity": velocity})


@register(
    title="Conflict projection, q-weights, decaying momentum",
    reference="Ge, Li, Wang, FedFE: a fairness-equilibrium framework for federated learning systems, Journal of Machine "
    "Learning and Information Security, 2025",
    per_dataset={
        "cifar10": {"q": 1.0, "beta_init": 0.1},
        "fmnist3": {"q": 5.0, "beta_init": 0.1, "tau": 0},
        "mnist-shards": {"q": 5.0, "beta_init": 0.0},
        # Several local epochs with momentum make ||L h||^2 large and the q-weighted step short: embedded data wants a small q.
        "scanners": {"q": 0.02},
    },
)
def fedfe(
    q: float = 1.0,
    alpha: float = 0.1,
    tau: int = 1,
    beta_init: float = 0.1,
    order: Literal["ascending", "descending", "random"] = "ascending",
    project_first: int | None = None,
    lr: float | None = None,
    grad_scale: Literal["lr", "raw"] = "lr",
    L: float | None = None,
    server_lr: float = 1.0,
    renorm: bool = False,
    momentum: Literal["decaying", "literal"] = "decaying",
) -> Method:
    """`alpha` is the share of clients with the largest losses that keep their update (FedFV's meaning), `project_first` the
    paper's literal count of those that do not. `q=0, beta_init=0` is projection only, `beta_init=0` adds the weights."""
    require(q >= 0, "q", "at least 0", q)
    require(0 <= alpha <= 1, "alpha", "between 0 and 1", alpha)
    require(tau >= 0, "tau", "at least 0", tau)
    require(0 <= beta_init < 1, "beta_init", "at least 0 and below 1", beta_init)
    require(project_first is None or project_first >= 0, "project_first", "at least 0, or None", project_first)
    require(lr is None or lr > 0, "lr", "above 0", lr)
    require(L is None or L > 0, "L", "above 0", L)
    require(server_lr > 0, "server_lr", "above 0", server_lr)
    if L is not None and lr is not None:
        raise EquipoiseError(f"`L` is 1/lr: give one of the two. Found L={L} and lr={lr}.")
    steps: tuple[Step, ...] = (ExternalConflicts(tau),) if tau else ()
    if renorm:
        steps += (LengthOfMean(),)
    if server_lr != 1:
        steps += (ServerRate(server_lr),)
    return Method(
        reports=(GlobalLoss(),),
        shape=(InternalConflicts(alpha, order, project_first),),
        weigh=PowerOfLoss(q, 1 / L if L else lr, grad_scale),
        step=(*steps, DecayingMomentum(beta_init, momentum == "literal")),
    )
