"""A projector between features and classifier: MOON's projection head, and FedLSA's map to the unit sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.parts.terms import unit
from equipoise.roles import Wrap
from equipoise.types import Outputs


class Projected(nn.Module):
    """A model whose features pass through a perceptron with one hidden layer to a new linear head."""

    def __init__(self, model: nn.Module, features: int, width: int, classes: int, sphere: bool) -> None:
        super().__init__()
        if isinstance(getattr(model, "head", None), nn.Linear):
            model.head = nn.Identity()  # the old head is not used any more, and should not be sent
        self.model = model
        self.projector = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        self.head = nn.Linear(width, classes)
        self.sphere = sphere

    def forward(self, x: Tensor) -> Outputs:
        """The model's outputs, with the projected features `[batch, width]` and the logits of the new head."""
        out: Outputs = self.model(x)
        features = self.projector(out.features)
        features = unit(features) if self.sphere else features
        return out._replace(logits=self.head(features), features=features)


@dataclass(frozen=True)
class Projection(Wrap):
    """Puts a projector and a new linear classifier in the place of the model's head."""

    order: ClassVar[int] = 2

    width: int  # number of projected features
    sphere: bool = False  # whether the projected features are normalised to length one

    @property
    def gives(self) -> tuple[str, ...]:
        """`"features on the sphere"` if they are normalised."""
        return ("features on the sphere",) if self.sphere else ()

    def __call__(self, model: nn.Module, classes: int, example: Tensor) -> nn.Module:
        model.eval()
        with torch.no_grad():
            features = model(example).features.shape[1]
        return Projected(model, features, self.width, classes, self.sphere)
