"""A model made of stages, for methods that work on feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from equipoise.types import Outputs


class Staged(nn.Module):
    """Stages that map feature maps to feature maps, a pooling with an optional neck of layers after it, and a head."""

    spare_outputs: int = 0  # outputs of the head that belong to no class

    def __init__(
        self,
        stages: Sequence[nn.Module],
        head: nn.Module,
        pooling: Literal["mean", "flatten"] = "mean",
        neck: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.neck = neck or nn.Identity()
        self.head = head
        self.pooling = pooling

    def pool(self, map: Tensor) -> Tensor:
        """The features `[batch, width]` of the last feature map `[batch, channels, height, width]`: pooling and
        neck."""
        return self.neck(map.mean((2, 3)) if self.pooling == "mean" else map.flatten(1))

    def forward(self, x: Tensor) -> Outputs:
        """Logits, features, the last feature map, and the map after each stage."""
        layers = []
        for stage in self.stages:
            x = stage(x)
            layers.append(x)
        features = self.pool(x)
        return Outputs(self.head(features), features, x, tuple(layers))
