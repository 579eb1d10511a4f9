"""FedFE: conflict projection as in FedFV, weights as in q-FFL, and a server momentum that decays to zero.

Ge, Li and Wang, Journal of Machine Learning and Information Security, 2025. Where the paper is unclear or cannot be
executed, it was read as follows. Updates are scaled by `L = 1/lr`, so that q = 0 without conflicts is FedAvg. Losses
are those of the received model. Equation 16, as printed, multiplies the *model* by the momentum coefficient, which
destroys it (`momentum="literal"` shows that); it is read as heavy-ball momentum with a decaying coefficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from equipoise.method import EquipoiseError, Method, Range, Round, State, Step, Stepped, register, require
from equipoise.parts.conflicts import ExternalConflicts, InternalConflicts
from equipoise.parts.reports import GlobalLoss
from equipoise.parts.steps import LengthOfMean, ServerRate
from equipoise.parts.weights import PowerOfLoss


def decayed(beta_init: float, t: int, rounds: int) -> float:
    """The momentum coefficient of round t, which falls from `beta_init` to 0 (DEMON's schedule).

    With `b = beta_init (1 - t/rounds)` it is `b / (1 - beta_init + b)`.

    >>> decayed(0.1, 0, 10), round(decayed(0.1, 5, 10), 4), decayed(0.1, 10, 10)
    (0.1, 0.0526, 0.0)
    """
    left = beta_init * max(0.0, 1 - t / rounds)
    return left / (1 - beta_init + left)


@dataclass(frozen=True)
class DecayingMomentum(Step, by_columns=("velocity",)):
    """`v <- beta_t v + direction`, and the model moves by `v`. The coefficient `beta_t` falls from `beta_init` to 0."""

    reads_updates: ClassVar[bool] = False

    beta_init: float  # the first coefficient
    literal: bool = False  # multiply the model by the coefficient instead, as equation 16 is printed

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
        # With several local epochs and momentum ||L h||^2 is large, which makes the q-weighted step short: q must be
        # small.
        "scanners": {"q": 0.02},
        "clinics": {"q": 0.1},  # chosen by benchmarks/demo_parameters.py
    },
    ranges={"q": Range(0.01, 5.0, log=True), "alpha": Range(0.0, 0.5), "beta_init": Range(0.0, 0.5)},
    side="server",
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
    """Conflicts between updates are removed, q-FFL's weights applied, and a decaying momentum added.

    `q` says how much large losses count. `alpha` is the share of clients, those with the largest losses, that keep
    their update (FedFV's meaning); `project_first` instead is the number of clients whose updates are projected, as the
    paper has it. `order` is the order of losses in which conflicts are removed. The last updates of clients absent for
    up to `tau` rounds are taken into account. `beta_init` is the first momentum coefficient. `L` (or `lr`, with
    `L = 1/lr`) is the constant of the weights, by default from the local rate; `grad_scale="raw"` does not scale
    updates by it. `server_lr` multiplies the direction, and `renorm` gives it the norm of the plain mean, as in FedFV.
    `momentum="literal"` is equation 16 as printed. The paper's ablations are `q=0, beta_init=0` (projection only) and
    `beta_init=0` (no momentum).
    """
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
