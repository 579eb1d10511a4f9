"""What `mkdocs build` does for this site beyond its settings in mkdocs.yml.

- The README, the page for contributors and the changelog lie at the top of the checkout; they become pages, and their links
  follow.
- A `*` in the navigation stands for all pages of a folder.
- Formulas become MathML, which browsers draw without any script.
- A public name that the reference does not show is a warning, and with `--strict` an error.

The libraries of the extra `docs` are imported where they are needed, so that the tests can read this file without them.
"""

from __future__ import annotations

import importlib
import logging
import re
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

TOP = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKED = ("CITATION.cff", "examples/new_method.py", "examples/own_pieces.py")  # what pages link to, and is no page
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
REFERENCE = {"equipoise": "equipoise.md", "equipoise.method": "method.md"}  # modules whose public names are spelt out
log = logging.getLogger("mkdocs.hooks.equipoise")


def on_config(config: Any) -> Any:
    """Spell out the folders of the navigation, and look whether the reference is complete."""
    config.nav = _spell_out(config.nav, Path(config.docs_dir))
    for module, page in REFERENCE.items():
        for wrong in find_unlisted(importlib.import_module(module), Path(config.docs_dir) / "reference" / page):
            log.warning(wrong)
    return config


def _spell_out(nav: Any, docs: Path) -> Any:
    if isinstance(nav, dict):
        return {title: _spell_out(below, docs) for title, below in nav.items()}
    if isinstance(nav, list):
        spelt = [_spell_out(one, docs) for one in nav]
        return [page for one in spelt for page in (one if isinstance(one, list) else [one])]
    if isinstance(nav, str) and nav.endswith("/*"):
        found = sorted(docs.glob(f"{nav}.md"))
        return [page.relative_to(docs).as_posix() for page in found if page.name != "README.md"]
    return nav


def find_unlisted(module: ModuleType, page: Path) -> list[str]:
    """What is wrong with a page of the reference: public names of the module that it lacks, and others that it has."""
    shown = {line.rpartition(".")[2] for line in page.read_text().splitlines() if line.startswith("::: ")}
    public = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
    return [
        f"{page.name}: `{module.__name__}.{name}` is {'missing' if name in public else 'not public'}"
        for name in sorted(public ^ shown)
    ]


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of the folder of pages."""
    from mkdocs.structure.files import File, InclusionLevel

    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=_relink((TOP / source).read_text())))
    for name in LINKED:
        content, inclusion = (TOP / name).read_text(), InclusionLevel.INCLUDED
        files.append(File.generated(config, name, content=content, inclusion=inclusion))
    return files


def _relink(text: str) -> str:
    """Links from the top of the checkout as links between pages."""
    text = text.replace("](docs/", "](")
    for source, target in PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of the folder of pages lead to the copies of `on_files`. A search finds prose before the reference."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.5}
    return markdown.replace("](../examples/", "](examples/")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Write formulas as MathML."""
    return FORMULA.sub(lambda found: _write_formula(found, page), html)


def _write_formula(found: re.Match[str], page: Any) -> str:
    from latex2mathml.converter import convert

    tex = " ".join(unescape(found[2]).split()).replace(r"\arg", r"\operatorname{arg}\,")
    in_line = found[1] == "span"
    mathml = convert(tex, display="inline" if in_line else "block")
    if left := sorted(set(re.findall(r">(\\\w+)", mathml))):
        log.warning("%s: a formula has %s, which is not known: %s", page.file.src_uri, ", ".join(left), tex)
    return mathml if in_line else f'<div class="formula">{mathml}</div>'
