"""The file of what a run kept beyond its records (option `--keep`). `runs/analysis.py` computes its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.runs.requests import Request, parse_request
from equipoise.runs.sums import add_file, replace_file

FILE = "analysis.json"  # in the run's folder
MISSING = "missing"  # the key of the reason why a run cannot give what it was asked for


def merge_kept(place: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what was found, by request, to the file in a run's folder, in place of what is older."""
    try:
        replace_file(place / FILE, json.dumps({**read_kept(place), **found}))
        add_file(place, FILE)
    except OSError as error:
        raise EquipoiseError(f"Cannot write `{place / FILE}`: {error.strerror}. Choose another --out.") from None


def read_kept(place: Path) -> dict[str, Any]:
    """What a run kept, by request as text. Empty if it kept nothing, or if the file cannot be read."""
    try:
        found: dict[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def read_kept_of(place: Path, kind: str) -> dict[Request, dict[str, Any]]:
    """What a run kept of one kind, by request. What it was asked for and could not give has the reason as `MISSING`."""
    found: dict[Request, dict[str, Any]] = {}
    for text, content in read_kept(place).items():
        try:
            request = parse_request(text)
        except EquipoiseError:  # a newer version kept it
            continue
        if request.kind == kind:
            found[request] = content
    return found
