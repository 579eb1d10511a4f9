"""Use a model of your own: any module that maps a batch of samples to logits. It need not derive from anything."""

from __future__ import annotations

from torch import Tensor, nn

from equipoise.grammar import did_you_mean
from equipoise.types import EquipoiseError, Outputs


class Adapted(nn.Module):
    """A model that returns `Outputs`, around one that returns logits. The features are the input or output of one of
    its layers."""

    def __init__(self, model: nn.Module, layer: str, of_input: bool) -> None:
        super().__init__()
        self.model = model
        self.layer = layer
        self.of_input = of_input

    def forward(self, x: Tensor) -> Outputs:
        """The model's logits `[batch, classes]`, and the features that the layer shows."""
        seen: list[Tensor] = []

        def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append(inputs[0] if self.of_input else output)

        hook = self.model.get_submodule(self.layer).register_forward_hook(note)
        try:
            logits = self.model(x)
        finally:
            hook.remove()
        if not seen:
            raise EquipoiseError(
                f"Layer `{self.layer}` of `{type(self.model).__name__}` was not called, so it shows no features. Name another "
                "one: equipoise.models.adapt(model, features=...)."
            )
        found = seen[-1]
        map = found if found.dim() == 4 and not self.of_input else None
        return Outputs(logits, found.flatten(1) if map is None else map.mean((2, 3)), map)


def adapt(model: nn.Module, features: str | None = None) -> nn.Module:
    """Make a model that returns `Outputs` from one that returns logits as a plain tensor.

    `features` is the name, in `model.named_modules()`, of the layer whose output is used as the features. By default
    they are the input of the last linear layer. A run adapts a model that returns a plain tensor by itself.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> adapt(network)(torch.zeros(2, 4)).features.shape
    torch.Size([2, 8])
    >>> adapt(network, features="0")(torch.zeros(2, 4)).features.shape
    torch.Size([2, 8])
    """
    layers = dict(model.named_modules())
    kind = type(model).__name__
    if features is not None:
        if features not in layers:
            raise EquipoiseError(f"`{kind}` has no layer `{features}`.{did_you_mean(features, layers)}")
        return Adapted(model, features, of_input=False)
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    if not linear:
        raise EquipoiseError(
            f"`{kind}` has no linear layer before its logits. Name the layer that shows the features: "
            "equipoise.models.adapt(model, features=...)."
        )
    return Adapted(model, linear[-1], of_input=True)
