"""`python -m equipoise` is the command `equipoise`."""

from equipoise.cli import main

main()
