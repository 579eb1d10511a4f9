"""The report: one page that shows which clients gained under a method and which lost, and tables for papers."""

from equipoise.study.report import heat, kept, parameters, plots, unseen

__all__ = ["heat", "kept", "parameters", "plots", "unseen"]
