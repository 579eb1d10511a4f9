"""Which client and which parameters of a run a request of `--keep` means. What is not there is refused before the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from equipoise.data import Federation
from equipoise.engine.result import Run
from equipoise.errors import EquipoiseError
from equipoise.grammar import did_you_mean, join_words, show_value
from equipoise.method import Method
from equipoise.runs.requests import Request, parse_request
from equipoise.runs.signs import watch_signs
from equipoise.task import Task

NAMED = 1000  # the most names among which a nearest one is looked for
AROUND = "model."  # how names of parameters begin that stand in a module around the model


def check_clients(texts: Iterable[str], federation: Federation) -> None:
    """Refuse requests that name a client which the federation does not have, or which never trains."""
    for request in map(parse_request, texts):
        if not request.client:
            continue
        if any(request.client == client.name for client in federation.unseen):
            raise EquipoiseError(
                f"{_name(request, 'client')} is held out and never trains, so that it has no model of its own to look at: "
                "name another client."
            )
        if _find_number(federation, request.client) is None:
            names = [client.name for client in islice(federation.clients, NAMED)]
            raise EquipoiseError(
                f"{_name(request, 'client')} is not in the federation.{did_you_mean(request.client, names)} Clients: "
                f"{join_words(names, 12)}."
            )


def check_layers(texts: Iterable[str], run: Run) -> None:
    """Refuse requests that name a layer which the model does not have, neither with the method's wraps nor without."""
    for request in map(parse_request, texts):
        if request.layer and not has_layer(run.task, request.layer) and not has_layer(_unwrap(run), request.layer):
            layers = list_layers(run.task.initial_params)
            raise EquipoiseError(
                f"{_name(request, 'layer')} is not in model `{run.settings.model_name}`."
                f"{did_you_mean(request.layer, layers)} Layers: {join_words(layers, 12)}."
            )


def watch(begun: Run, texts: Sequence[str]) -> Run:
    """The run before its first round, with the parts that look on for what it is asked to keep.

    A client or a layer that is not there is an error here, before anything is trained.
    """
    check_clients(texts, begun.federation)
    check_layers(texts, begun)
    asked = [request for request in map(parse_request, texts) if request.kind == "consistency"]
    wanted = {name for request in asked for name in list_watched(begun, request)}
    if not wanted:
        return begun
    numbers = {_find_number(begun.task.federation, request.client) if request.client else None for request in asked}
    clients = None if None in numbers else sorted(number for number in numbers if number is not None)
    return replace(begun, onlookers=watch_signs(begun, [n for n in begun.task.layout.names if n in wanted], clients))


# --------------------------------------------------------------------------- clients
def find_client(run: Run, request: Request) -> int:
    """The number of the client that a request names. Where all data are pooled there is none."""
    number = _find_number(run.task.federation, request.client)
    if number is None:
        raise EquipoiseError(
            f"`{run.method}` trains one model on the data of all clients, so that {_name(request, 'client')} has none of its "
            "own."
        )
    return number


def _find_number(federation: Federation, name: str) -> int | None:
    return next((k for k, client in enumerate(federation.clients) if client.name == name), None)


def _name(request: Request, parameter: str) -> str:
    """A parameter of a request and its value, in words for a message."""
    return f"`{parameter}={show_value(getattr(request, parameter))}` of --keep {request.kind}"


# --------------------------------------------------------------------------- layers
def list_layers(names: Iterable[str]) -> list[str]:
    """The layers that these parameters belong to, as a request may name them.

    >>> list_layers(["model.stages.0.0.weight", "model.stages.0.0.bias", "model.head.weight"])
    ['stages.0.0', 'head']
    """
    return list(dict.fromkeys(_strip(name).rpartition(".")[0] or _strip(name) for name in names))


def _strip(name: str) -> str:
    """The name of a parameter in the model itself, without the modules that wraps put around it."""
    while name.startswith(AROUND):
        name = name.removeprefix(AROUND)
    return name


def has_layer(task: Task, layer: str) -> bool:
    """Whether a task's model has a layer of this name."""
    return bool(_pick_layer(task.initial_params, layer))


def _unwrap(run: Run) -> Task:
    """The run's task with the model as it was before the method's wraps changed it."""
    if not run.method.wrap:
        return run.task
    return Task.build(Method(), run.federation, model=run.settings.model, loss=run.settings.loss)


def _pick_layer(names: Iterable[str], layer: str) -> list[str]:
    """Those of these parameters that are in a layer, or in one inside it; all of them if no layer is named."""
    return [
        name for name in names if not layer or any(f"{one}.".startswith(f"{layer}.") for one in (name, _strip(name)))
    ]


def list_watched(run: Run, request: Request) -> list[str]:
    """The shared parameters that a request for `consistency` means, in the order of updates."""
    return _pick_layer(run.task.layout.names, request.layer)
