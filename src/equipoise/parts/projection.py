"""A projector between features and classifier: MOON's head, FedLSA's way to the sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.parts.terms import unit
from equipoise.roles import Wrap
from equipoise.types import Outputs


class Projected(nn.Module):
    """A model whose features pass a perceptron with one hidden layer; a new linear head reads the result."""

    def __init__(self, model: nn.Module, features: int, width: int, classes: int, sphere: bool) -> None:
        super().__init__()
        if isinstance(getattr(model, "head", None), nn.Linear):
            model.head = nn.Identity()  # nobody reads the old head: it should not travel
        self.model = model
        self.projector = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        self.head = nn.Linear(width, classes)
        self.sphere = sphere

    def forward(self, x: Tensor) -> Outputs:
        out: Outputs = self.model(x)
        features = self.projector(out.features)
        features = unit(features) if self.sphere else features
        return out._replace(logits=self.head(features), features=features)


@dataclass(frozen=True)
class Projection(Wrap):
    """Puts a projector of `width` outputs before the classifier; `sphere` brings them to length one."""

    order: ClassVar[int] = 2

    width: int
    sphere: bool = False

    @property
    def gives(self) -> tuple[str, ...]:
        return ("features on the sphere",) if self.sphere else ()

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        model.eval()
        with torch.no_grad():
            features = model(example).features.shape[1]
        return Projected(model, features, self.width, classes, self.sphere)
