"""One page that shows who gained and who paid."""

from equipoise.study.report import kept, plots

__all__ = ["kept", "plots"]
