"""Draws the packages of Equipoise as rooms, and the imports between them as doors: `python docs/draw_rooms.py`.

The imports are read from the source, which is not run. A room of a lower layer that imports from a higher one is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "equipoise"
FILE = Path(__file__).parent / "pictures" / "rooms.svg"
VOCABULARY = "vocabulary"  # the modules that lie at the top of the package and belong to no room
NO_ROOM = (
    "__init__",
    "__main__",
)  # the public names, which are imported when they are first used; and `python -m equipoise`
# From top to bottom. Rooms of one layer do not know each other.
LAYERS = (
    ("cli",),
    ("study", "flower"),
    ("runs",),
    ("engine",),
    ("rounds",),
    ("local",),
    ("task",),
    ("data", "methods"),
    ("method",),
    ("parts",),
    ("models",),
    (VOCABULARY,),
)
ROOMS = tuple(room for layer in LAYERS for room in layer)
Doors = dict[str, set[str]]  # room -> rooms that it imports from


# --------------------------------------------------------------------------- reading
def room_of(module: str) -> str:
    """The room of a module, given its dotted name below the package."""
    first = module.split(".")[0]
    return first if first in ROOMS else VOCABULARY


def list_modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module that belongs to a room: its dotted name below the package, and its code."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        if name not in NO_ROOM:
            yield name.removesuffix(".__init__"), ast.parse(file.read_text())


def list_imports(code: ast.Module) -> Iterator[str]:
    """What a module imports of the package, wherever the statement stands: dotted names below the package."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module == "equipoise":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise."):
            yield str(node.module).removeprefix("equipoise.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("equipoise.") for a in node.names if a.name.startswith("equipoise."))


def read_doors() -> Doors:
    """Which room imports from which, and nothing that goes upwards."""
    doors: Doors = {room: set() for room in ROOMS}
    level = {room: i for i, layer in enumerate(LAYERS) for room in layer}
    wrong = []
    for module, code in list_modules():
        here = room_of(module)
        for name in list_imports(code):
            there = room_of(name)
            if there == here:
                continue
            doors[here].add(there)
            if level[there] <= level[here]:
                wrong.append(f"equipoise.{module} imports equipoise.{name}: from `{here}` up to `{there}`")
    if wrong:
        raise SystemExit("\n".join(sorted(set(wrong))))
    return doors


def read_purposes() -> dict[str, str]:
    """The first paragraph of every room's docstring; of the vocabulary the names of its modules."""
    found = {}
    loose = []
    for module, code in list_modules():
        room = room_of(module)
        if room == VOCABULARY:
            loose.append(module)
        elif module == room:
            first = (ast.get_docstring(code) or "").split("\n\n")[0]
            found[room] = " ".join(first.replace("`", "").split())
    return {**found, VOCABULARY: ", ".join(loose)}


def keep_necessary(doors: Mapping[str, set[str]]) -> Doors:
    """The doors without those to which a longer way leads as well: what arrows show."""

    def reach(room: str) -> set[str]:
        return doors[room].union(*(reach(next_room) for next_room in doors[room]))

    return {
        room: {there for there in theirs if not any(there in reach(other) for other in theirs - {there})}
        for room, theirs in doors.items()
    }


# --------------------------------------------------------------------------- drawing
WIDTH, MARGIN, GUTTER, GAP = 1000, 20, 60, 26  # of the picture; around it; between two columns; between two layers
HALF = (WIDTH - 2 * MARGIN - GUTTER) // 2
LEFT, RIGHT = MARGIN, MARGIN + HALF + GUTTER
COLUMNS = {"study": LEFT, "flower": RIGHT, "local": LEFT, "task": LEFT, "data": LEFT} | dict.fromkeys(
    ("methods", "method", "parts", "models"), RIGHT
)
LINE, LETTER = 17, 6.4  # height of a line and mean width of a letter, for text of 12 px
# What a colour means, the colour, and the rooms that have it.
GROUPS = (
    ("what people look at", "#e3ebf6", ("cli", "study", "flower", "runs")),
    ("what computes", "#e1f3e8", ("engine", "rounds", "local", "task")),
    ("what is combined", "#efe6f8", ("data", "methods", "method", "parts", "models")),
    ("the words that all share", "#f7efdc", (VOCABULARY,)),
)
FILLS = {room: colour for _, colour, rooms in GROUPS for room in rooms}


def break_lines(text: str, width: int) -> list[str]:
    """Text in lines that fit into so many pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * LETTER > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


class Box:
    """One room on the picture: its name, what it is for, and all doors that it uses."""

    def __init__(self, room: str, purpose: str, doors: set[str], top: int) -> None:
        self.room, self.top = room, top
        self.left = COLUMNS.get(room, MARGIN)
        self.width = HALF if room in COLUMNS else WIDTH - 2 * MARGIN
        inside = self.width - 28
        self.purpose = break_lines(purpose, inside)
        known = " · ".join(other for other in ROOMS if other in doors)
        self.doors = break_lines(f"imports {known}", inside) if known else []
        self.height = 32 + LINE * (len(self.purpose) + len(self.doors)) + 4
        self.bottom, self.centre = top + self.height, self.left + self.width // 2

    def draw(self) -> str:
        name = self.room if self.room == VOCABULARY else f"equipoise.{self.room}"
        rows = [f'<text x="{self.left + 14}" y="{self.top + 23}" font-size="15" font-weight="bold">{name}</text>']
        y = self.top + 25
        for colour, lines in (("#222", self.purpose), ("#5b6675", self.doors)):
            for line in lines:
                y += LINE
                rows.append(f'<text x="{self.left + 14}" y="{y}" fill="{colour}">{escape(line)}</text>')
        fill = FILLS[self.room]
        frame = f'<rect x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}" rx="8"'
        return "\n".join([f'{frame} fill="{fill}" stroke="#8795a8"/>', *rows])


def draw_arrow(upper: Box, lower: Box) -> str:
    """From the bottom of one box to the top, or the side, of another; never across a third."""
    shared = max(upper.left, lower.left), min(upper.left + upper.width, lower.left + lower.width)
    if shared[0] < shared[1]:  # one is above the other
        x = lower.centre if lower.width <= upper.width else upper.centre
        return _path(f"M{x} {upper.bottom} V{lower.top}")
    x = LEFT + HALF + GUTTER // 2  # down the gutter, and in from the side
    side = lower.left if lower.left > x else lower.left + lower.width
    start = upper.left + upper.width if upper.left < x else upper.left
    return _path(f"M{start} {upper.top + 18} H{x} V{lower.top + 18} H{side}")


def _path(way: str) -> str:
    return f'<path d="{way}" marker-end="url(#head)"/>'


def draw(doors: Mapping[str, set[str]], purposes: Mapping[str, str]) -> str:
    """The picture as SVG."""
    boxes: dict[str, Box] = {}
    top = 84
    for layer in LAYERS:
        row = [Box(room, purposes[room], doors[room], top) for room in layer]
        for box in row:  # boxes of one layer are equally high
            box.height = max(one.height for one in row)
            box.bottom = box.top + box.height
        boxes |= {box.room: box for box in row}
        top = row[0].bottom + GAP
    arrows = [
        draw_arrow(boxes[room], boxes[there])
        for room, theirs in keep_necessary(doors).items()
        for there in sorted(theirs, key=ROOMS.index)
    ]
    notes = (
        "A door leads from a room to one that it imports from, always downwards. Rooms side by side do not know each other.",
        "A box names all of its doors. Arrows are the doors that no longer way through other rooms could replace.",
    )
    legend = []
    for place, (meaning, colour, _) in enumerate(GROUPS):
        x = 310 + 165 * place
        legend.append(f'<rect x="{x}" y="18" width="14" height="14" rx="3" fill="{colour}" stroke="#8795a8"/>')
        legend.append(f'<text x="{x + 20}" y="29">{meaning}</text>')
    height = top - GAP + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 L10 5 L0 10 z" fill="#444"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="{MARGIN}" y="30" font-size="18" font-weight="bold">Rooms and doors</text>',
            *(f'<text x="{MARGIN}" y="{50 + LINE * i}" fill="#444">{line}</text>' for i, line in enumerate(notes)),
            *legend,
            '<g stroke="#444" stroke-width="1.4" fill="none">',
            *arrows,
            "</g>",
            *(box.draw() for box in boxes.values()),
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    FILE.write_text(draw(read_doors(), read_purposes()))
