"""How the reference reads docstrings beyond what griffe does by itself.

Fields are often explained by a comment behind or above them: such a comment is the field's docstring. Examples for the tests
become blocks of code.
"""

from __future__ import annotations

import io
import re
import textwrap
import tokenize
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import griffe

PRAGMA = re.compile(r"(fmt|type|noqa|pragma)\b")
SHAPE = re.compile(r"(?<![`\w])\[[\w., ]*\](?![`(\[])")  # such as [m, G]


class Docstrings(griffe.Extension):
    """Completes the docstrings of everything that griffe has loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring is None and isinstance(obj, griffe.Attribute) and (text := explain(obj)):
            obj.docstring = griffe.Docstring(SHAPE.sub(r"`\g<0>`", text), lineno=obj.lineno, parent=obj)
        elif obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def explain(field: griffe.Attribute) -> str | None:
    """The comment that stands behind or above a field."""
    if field.lineno is None or field.endlineno is None or not isinstance(field.filepath, Path):
        return None
    lines = field.lines_collection[field.filepath]
    statement = "\n".join(lines[field.lineno - 1 : field.endlineno])
    return find_comment(statement) or find_lines_above(lines[: field.lineno - 1])


def find_comment(statement: str) -> str | None:
    """The one comment of a statement.

    >>> find_comment("weights: Tensor  # [m], any divisor inside")
    '[m], any divisor inside'
    """
    lines = io.StringIO(textwrap.dedent(statement)).readline
    found = [token.string.lstrip("# ") for token in tokenize.generate_tokens(lines) if token.type == tokenize.COMMENT]
    return found[0] if len(found) == 1 and not PRAGMA.match(found[0]) else None


def find_lines_above(before: Sequence[str]) -> str | None:
    """The comment that ends right above a statement; rulers between sections are none.

    >>> find_lines_above(["x = 1", "# Two lines", "# about y."])
    'Two lines about y.'
    """
    found = list(takewhile(lambda line: re.match(r"\s*# (?!---)", line), reversed(before)))
    return " ".join(line.strip().lstrip("# ") for line in reversed(found)) or None


def fence_examples(docstring: str) -> str:
    """Examples in blocks of code.

    >>> fence_examples("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2]
    '```pycon'
    """
    return re.sub(r"^>>> .*(\n.+)*", lambda found: f"```pycon\n{found[0]}\n```", docstring, flags=re.MULTILINE)
