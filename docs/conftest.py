"""The tests read this folder, too: pages, and the scripts that make them."""

from importlib.util import find_spec

# It belongs to the site, whose libraries are there only with the extra `docs`.
collect_ignore = [] if find_spec("griffe") else ["site_docstrings.py"]
