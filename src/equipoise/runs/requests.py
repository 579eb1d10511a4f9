"""What `--keep` can ask for, as text: `features`, `saliency(client='photo 1')`, `consistency(layer='stages.1')`.

Each function below is one kind of request; its parameters are those that the text may give.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.grammar import Call, Entry, Registry, parse_one, split_list

EXAMPLE = "saliency(client='photo 1')"


@dataclass(frozen=True)
class Request:
    """Something that a run is asked to keep. `str` writes it as it is parsed, and as the run's folder names it."""

    kind: str  # such as `features`
    client: str = ""  # the name of the client that is looked at; empty: see each kind
    layer: str = ""  # the layer that is looked at; empty: all of them

    def __str__(self) -> str:
        given = (("client", self.client), ("layer", self.layer))
        return str(Call(self.kind, tuple((name, value) for name, value in given if value)))


def conflicts() -> Request:
    """Cosines between the updates of one more round."""
    return Request("conflicts")


def consistency(client: str = "", layer: str = "") -> Request:
    """In how many rounds an entry of an update had the same sign: of all clients and layers, or of one."""
    return Request("consistency", client, layer)


def features(client: str = "") -> Request:
    """Features of test samples: by the scored model, or by the local model of a client."""
    return Request("features", client)


def saliency(client: str = "") -> Request:
    """Grad-CAM of a test sample per domain: of the scored model, or of the local model of a client."""
    return Request("saliency", client)


def separators() -> Request:
    """Two-dimensional test samples, and the model's border between two classes."""
    return Request("separators")


def spectrum() -> Request:
    """Singular values of the features of test samples, by the local model of each client."""
    return Request("spectrum")


REQUESTS: Registry[Request] = Registry("thing to keep", listed=False)  # all kinds, by name
for kind in (conflicts, consistency, features, saliency, separators, spectrum):
    REQUESTS[kind.__name__] = Entry(kind.__name__, kind)


def parse_request(text: str) -> Request:
    """What a text asks to keep. A kind or a parameter that is not known is an error that names the nearest one.

    >>> str(parse_request("consistency(layer='stages.1')"))
    "consistency(layer='stages.1')"
    >>> parse_request("conflicts(client='photo 1')")
    Traceback (most recent call last):
    equipoise.EquipoiseError: `conflicts` has no parameter `client`. Its parameters: none.
    """
    call = parse_one(text, "thing to keep", EXAMPLE)
    entry = REQUESTS.find(call.name)
    arguments = entry.check(dict(call.arguments))
    return entry.function(**arguments)


def normalise_requests(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts as `Request` writes them, each once: a run's folder names what it kept in this way.

    >>> normalise_requests(["features", 'saliency( client="photo 1" )', "features"])
    ('features', "saliency(client='photo 1')")
    """
    return tuple(dict.fromkeys(str(parse_request(text)) for text in texts))


def split_requests(text: str) -> tuple[str, ...]:
    """The requests in a list separated by commas, as `--keep` takes it."""
    return normalise_requests(split_list(text))
