"""The file of what a run kept beyond its records (option `--keep`). `runs/analysis.py` computes its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.runs.sums import add_file, replace_file

FILE = "analysis.json"  # in the run's folder
KINDS = ("conflicts", "consistency", "features", "saliency", "separators")  # what `--keep` can ask for
MISSING = "missing"  # the key of the reason why a run cannot give a kind


def merge_kept(place: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Add kinds to the file in a run's folder, in place of older ones; of `consistency` all rounds are kept."""
    old = read_kept(place)
    whole = {**old, **found}
    if "consistency" in found:
        whole["consistency"] = {**old.get("consistency", {}), **found["consistency"]}
    try:
        replace_file(place / FILE, json.dumps(whole))
        add_file(place, FILE)
    except OSError as error:
        raise EquipoiseError(f"Cannot write `{place / FILE}`: {error.strerror}. Choose another --out.") from None


def read_kept(place: Path) -> dict[str, Any]:
    """What a run kept, by kind. Empty if it kept nothing, or if the file cannot be read."""
    try:
        found: dict[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
