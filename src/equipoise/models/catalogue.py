"""The models of the library by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equipoise import seeds
from equipoise.errors import EquipoiseError
from equipoise.grammar import Entry, Registry, parse_one
from equipoise.models.resnet import resnet10, resnet12
from equipoise.models.small import cnn, linear, mlp, small_cnn

MODELS: Registry[nn.Module] = Registry("model")  # all models, by name


def _register(function: Callable[..., nn.Module]) -> None:
    MODELS[function.__name__] = Entry(function.__name__, function, (function.__doc__ or "").strip().split("\n")[0])


for builder in (linear, mlp, cnn, resnet10, resnet12, small_cnn):
    _register(builder)


def build_model(text: str, input_shape: tuple[int, ...], classes: int, seed: int = 0) -> nn.Module:
    """A freshly initialised model from text such as `mlp(hidden=(64,))`, for samples of shape `input_shape`.

    >>> sum(p.numel() for p in build_model("linear", (784,), 10).parameters())
    7850
    """
    call = parse_one(text, "model")
    entry = MODELS.find(call.name)
    given = dict(call.arguments)
    reserved = {"input_shape", "classes"} & set(given)
    if reserved:
        raise EquipoiseError(f"`{reserved.pop()}` of a model follows from the data. Leave it out of `{text}`.")
    arguments = entry.check(given)
    try:
        return seeds.build_from_seed(lambda: entry.function(input_shape, classes, **arguments), seed, "model")
    except (RuntimeError, ZeroDivisionError, TypeError) as error:
        raise EquipoiseError(f"Model `{text}` cannot be built for samples of shape {input_shape}: {error}") from None
