"""Makes `python -m equipoise` the same as the command `equipoise`."""

from equipoise.cli import main

main()
