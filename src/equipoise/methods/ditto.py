"""Ditto: a personal model beside the global one, pulled towards it. Li et al., ICML 2021."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
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
    """The global model and a personal copy of it. What others see is the global one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.personal = model, copy.deepcopy(model)

    def forward(self, x: Tensor) -> Outputs:
        out: Outputs = self.model(x)
        return out._replace(extra={**out.extra, PERSONAL_LOGITS: self.personal(x).logits})

    @property
    def stacks(self) -> bool:
        """Whether both models can be evaluated with stacked weights."""
        return getattr(self.model, "stacks", False)

    def stacked(self, params: Tensors, x: Tensor) -> Outputs:
        return self.factored(params)(x).out

    def factored(self, params: Tensors) -> Callable[[Tensor], Factored]:
        """Two passes side by side, and two ways back."""

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
    """A second, private copy of the whole model."""

    order: ClassVar[int] = 3
    leaves_global: ClassVar[bool] = True

    scored: Scored = "own"

    @property
    def scores(self) -> Scored:
        return self.scored

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        return Twin(model)

    def marks(self, model: nn.Module) -> dict[str, Mark]:
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        return {name: "private" for name in names if name.startswith("personal.")}


@dataclass(frozen=True)
class PersonalLoss(Term, needs=("personal copy",)):
    """The personal model's own cross-entropy and `lam/2 ||v - theta||^2` by its gradient, `theta` the received global model.

    No gradient passes between the two models, so both train side by side on the same batches.
    """

    lam: float

    def loss(self, local: Local) -> Tensor:
        return F.cross_entropy(local.out.extra[PERSONAL_LOGITS], local.y, reduction="none")

    @property
    def pull(self) -> float:
        return self.lam

    def force(self, received: Received, states: ClientState) -> Tensors:
        """`-lam theta`, for the personal copy of every tensor of the global model."""
        given = {name.removeprefix("model."): v for name, v in received.params.items() if name.startswith("model.")}
        return {f"personal.{name}": -self.lam * value for name, value in given.items()}


@register(
    title="A personal model beside the global one, pulled towards it",
    reference="Li et al., Ditto: fair and robust federated learning through personalization, ICML 2021",
)
def ditto(lam: float = 1.0, evaluate: Literal["personal", "averaged-personal", "global"] = "personal") -> Method:
    """`lam` pulls the personal model; at 0 it trains alone. `evaluate` says which model `accuracy` belongs to; the others
    are recorded too."""
    require(lam >= 0, "lam", "at least 0", lam)
    scored: dict[str, Scored] = {"personal": "own", "averaged-personal": "mean", "global": "global"}
    return Method(wrap=(PersonalCopy(scored[evaluate]),), terms=(PersonalLoss(lam),))
