"""What a reader must know about each method of a study before its figures are compared."""

from __future__ import annotations

from equipoise.grammar import join_words
from equipoise.study.report.converged import notice_convergence
from equipoise.study.report.figures import Study


def find_notices(study: Study) -> dict[str, list[str]]:
    """What a reader must know about each method before its figures are compared; methods without any are left out."""
    found: dict[str, list[str]] = {}
    reference = study.reference
    for method in study.rivals if reference else ():
        seeds = len(study.shared_seeds(method, reference or method))
        if seeds == 0:
            found[method] = [f"no seed in common with {reference}, and therefore not judged"]
        elif seeds == 1:
            found[method] = ["one seed alone can be compared: the spread is not known"]
    for method in study.methods:
        if notice := notice_convergence(study, method):
            found.setdefault(method, []).append(notice)
    return found


def tell_notices(study: Study) -> list[str]:
    """The notices of a study in words. Methods with the same notice share a line."""
    lines: dict[str, list[str]] = {}
    for method, texts in find_notices(study).items():
        for text in texts:
            lines.setdefault(text, []).append(method)
    return [f"{join_words(methods, 12)}: {text}." for text, methods in lines.items()]
