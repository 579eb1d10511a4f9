"""What a run kept beyond its records (`--keep ...`), as it lies in its folder. `runs/analysis.py` computes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError

FILE = "analysis.json"
KINDS = ("conflicts", "consistency", "features", "saliency", "separators")
MISSING = "missing"  # stands for a kind that a run cannot give, with the reason


def merge_kept(place: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    old = read_kept(place)
    whole = {**old, **found}
    if "consistency" in found:
        whole["consistency"] = {**old.get("consistency", {}), **found["consistency"]}
    try:
        new = (place / FILE).with_suffix(".new")
        new.write_text(json.dumps(whole))
        new.replace(place / FILE)  # all of it or nothing
    except OSError as error:
        raise EquipoiseError(f"Cannot write `{place / FILE}`: {error.strerror}. Choose another --out.") from None


def read_kept(place: Path) -> dict[str, Any]:
    """What a run kept; nothing where it kept nothing, or where it cannot be read."""
    try:
        found: dict[str, Any] = json.loads((place / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found
