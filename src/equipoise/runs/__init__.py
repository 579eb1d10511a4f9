"""Run folders: how a run's records and its model are written, read and loaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.runs.loading import Loaded as Loaded
    from equipoise.runs.loading import load as load
    from equipoise.runs.reading import Recorded as Recorded
    from equipoise.runs.reading import read as read
    from equipoise.runs.writing import save as save

_HOME_OF = {"Loaded": "loading", "load": "loading", "Recorded": "reading", "read": "reading", "save": "writing"}

__all__ = ["Loaded", "Recorded", "load", "read", "save"]


def __getattr__(name: str) -> object:
    """Import each name when it is first used, so that a report can read run folders without the code that trains."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'equipoise.runs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"equipoise.runs.{_HOME_OF[name]}"), name)
