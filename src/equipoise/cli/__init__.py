"""The command line, a file a group of commands."""

from equipoise.cli.app import app, main

__all__ = ["app", "main"]
