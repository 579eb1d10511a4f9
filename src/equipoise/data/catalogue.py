"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.data.federation import Federation
from equipoise.data.gaussians import gaussians
from equipoise.data.scanners import scanners
from equipoise.grammar import Entry, Registry, parse_calls
from equipoise.types import EquipoiseError

DATASETS: Registry[Federation] = Registry("dataset")


def _register(function: Callable[..., Federation], reference: str) -> None:
    title = (function.__doc__ or "").strip().split("\n")[0]
    DATASETS[function.__name__] = Entry(function.__name__, function, title, reference)


_register(scanners, "scikit-learn's handwritten digits (Alpaydin and Kaynak, 1998)")
_register(gaussians, "EAGLE, section 4.1")


def load_federation(text: str) -> Federation:
    """A federation from text such as `scanners` or `gaussians(rotate=2)`.

    >>> len(load_federation("gaussians"))
    3
    """
    calls = parse_calls(text)
    if len(calls) != 1:
        raise EquipoiseError(f"Name one data set. Found `{text}`.")
    entry = DATASETS.find(calls[0].name)
    return entry.function(**entry.check(dict(calls[0].arguments)))
