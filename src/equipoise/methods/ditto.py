"""Ditto: every client trains a personal model beside the global one, and pulled towards it. Li et al., ICML 2021."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from equipoise.method import (
    PERSONAL_LOGITS,
    ClientState,
    Factored,
    Factors,
    Local,
    Mark,
    Method,
    OutputGradient,
    Outputs,
    Received,
    Scored,
    Tensors,
    Term,
    Wrap,
    register,
    require,
)


class Twin(nn.Module):
    """The global model and a personal copy of it. The outputs are the global model's, with the personal logits in
    `extra`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.personal = model, copy.deepcopy(model)

    def forward(self, x: Tensor) -> Outputs:
        """The global model's outputs, with `extra[PERSONAL_LOGITS]` from the personal one."""
        out: Outputs = self.model(x)
        return out._replace(extra={**out.extra, PERSONAL_LOGITS: self.personal(x).logits})

    @property
    def stacks(self) -> bool:
        """Whether both models can compute many clients at once."""
        return getattr(self.model, "stacks", False)

    def stacked(self, params: Tensors, x: Tensor) -> Outputs:
        """The outputs of many clients at once, from stacked parameters `[m, ...]` and samples `[m, batch, ...]`."""
        return self.factored(params)(x).out

    def factored(self, params: Tensors) -> Callable[[Tensor], Factored]:
        """The forward and backward passes of both models for many clients at once, from stacked parameters
        `[m, ...]`."""

        def of(model: Any, prefix: str) -> Callable[[Tensor], Factored]:
            return model.factored({n.removeprefix(prefix): v for n, v in params.items() if n.startswith(prefix)})

        global_model, personal_model = of(self.model, "model."), of(self.personal, "personal.")

        def forward(x: Tensor) -> Factored:
            shared, personal = global_model(x), personal_model(x)

            def back(gradient: OutputGradient) -> Factors:
                layers = {f"model.{name}": pair for name, pair in shared.back(gradient).items()}
                own = personal.back(OutputGradient(gradient.extra[PERSONAL_LOGITS]))
                return layers | {f"personal.{name}": pair for name, pair in own.items()}

            return Factored(shared.out._replace(extra={PERSONAL_LOGITS: personal.out.logits}), back)

        return forward


@dataclass(frozen=True)
class PersonalCopy(Wrap, gives=("personal copy",)):
    """Adds a private copy of the whole model."""

    order: ClassVar[int] = 3
    leaves_global: ClassVar[bool] = True

    scored: Scored = "own"  # which model `accuracy` belongs to

    @property
    def scores(self) -> Scored:
        """Which model `accuracy` belongs to."""
        return self.scored

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        return Twin(model)

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        """All tensors of the copy are private."""
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        return {name: "private" for name in names if name.startswith("personal.")}


@dataclass(frozen=True)
class PersonalLoss(Term, needs=("personal copy",)):
    """The loss of the personal model `v`: its cross-entropy, plus `lam/2 ||v - theta||^2` by its gradient.

    `theta` is the received global model. No gradient passes between the two models, so that both train side by side on
    the same batches.
    """

    lam: float  # strength of the pull towards the global model

    def loss(self, local: Local) -> Tensor:
        """The personal model's cross-entropies `[batch]`."""
        return local.loss(local.out.extra[PERSONAL_LOGITS], local.y)

    @property
    def pull(self) -> float:
        """`lam`: the factor of `v` in the gradient of the penalty."""
        return self.lam

    def force(self, received: Received, states: ClientState) -> Tensors:
        """`-lam theta`, for each parameter of the personal model: the constant part of the gradient of the penalty."""
        given = {name.removeprefix("model."): v for name, v in received.params.items() if name.startswith("model.")}
        return {f"personal.{name}": -self.lam * value for name, value in given.items()}


@register(
    title="A personal model beside the global one, pulled towards it",
    reference="Li et al., Ditto: fair and robust federated learning through personalization, ICML 2021",
)
def ditto(lam: float = 1.0, evaluate: Literal["personal", "averaged-personal", "global"] = "personal") -> Method:
    """Every client also trains a personal model `v` with the penalty `lam/2 ||v - theta||^2`.

    `lam` is the strength of the pull towards the global model; at 0 the personal model trains alone. `evaluate` says
    which model `accuracy` belongs to: the client's personal model, the mean of all personal models, or the global one.
    The other two are recorded as well.
    """
    require(lam >= 0, "lam", "at least 0", lam)
    scored: dict[str, Scored] = {"personal": "own", "averaged-personal": "mean", "global": "global"}
    return Method(wrap=(PersonalCopy(scored[evaluate]),), terms=(PersonalLoss(lam),))
