"""Tables of three hospitals, as similar and as different as such tables are."""

from __future__ import annotations

import csv
import random
from pathlib import Path

LABEL = "ill"
WARDS = {"north": ("heart", "lung"), "east": ("heart", "kidney"), "south": ("lung", "skin")}


def write_site(folder: Path, name: str, rows: int = 60, rare: int = 2, **renamed: str) -> Path:
    """A site's table. `rare` rows are of a ward of their own; `renamed` gives columns another name."""
    draw = random.Random(name)
    columns = ["id", "age", "sex", "pressure", "ward", LABEL]
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([renamed.get(column, column) for column in columns])
        for k in range(rows):
            age, pressure = draw.gauss(55, 12), draw.gauss(130, 15)
            sex, ward = draw.choice("fm"), f"rare {k} of {name}" if k < rare else draw.choice(WARDS[name])
            risk = (age - 55) / 12 + (pressure - 130) / 15 + (sex == "m") + draw.gauss(0, 0.5)
            shown = "" if k % 20 == 19 else f"{pressure:.0f}"
            writer.writerow([f"p{k}", f"{age:.1f}", sex, shown, ward, "yes" if risk > 0.5 else "no"])
    return path
