"""The models of the library by name, and what a text that names a model means."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equipoise import seeds
from equipoise.errors import EquipoiseError
from equipoise.grammar import Entry, Registry, parse_one
from equipoise.models.own import check_arguments, find_file, find_own_builder
from equipoise.models.resnet import resnet10, resnet12
from equipoise.models.small import cnn, linear, mlp, small_cnn

MODELS: Registry[nn.Module] = Registry("model")  # all models, by name


def _register(function: Callable[..., nn.Module]) -> None:
    MODELS[function.__name__] = Entry(function.__name__, function, (function.__doc__ or "").strip().split("\n")[0])


for builder in (linear, mlp, cnn, resnet10, resnet12, small_cnn):
    _register(builder)


def find_builder(text: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The function that builds the model which a text names, from the shape of a sample and the number of classes.

    The text is a model of the library, such as `mlp(hidden=(64,))`, or one of your own, such as `mynet.py:Net(width=3)`.
    """
    if find_file(text) is not None:
        return find_own_builder(text)
    call = parse_one(text, "model", "mlp(hidden=(64,))")
    entry = MODELS.find(call.name)
    arguments = check_arguments(entry, call)

    def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        try:
            return entry.function(input_shape, classes, **arguments)
        except (RuntimeError, ZeroDivisionError, TypeError) as error:
            raise EquipoiseError(
                f"Model `{text}` cannot be built for samples of shape {input_shape}: {error}"
            ) from None

    return build


def build_model(
    text: str, input_shape: tuple[int, ...], classes: int, seed: int = 0, torch_seed: int | None = None
) -> nn.Module:
    """A freshly initialised model from text such as `mlp(hidden=(64,))`, for samples of shape `input_shape`.

    With `torch_seed`, it is the model after `torch.manual_seed(torch_seed)`, as public codes have it.

    >>> sum(p.numel() for p in build_model("linear", (784,), 10).parameters())
    7850
    """
    build = find_builder(text)
    if torch_seed is not None:
        return seeds.build_from_torch_seed(lambda: build(input_shape, classes), torch_seed)
    return seeds.build_from_seed(lambda: build(input_shape, classes), seed, "model")
