"""Papers' tables and figures as experiments: what was published, what is claimed, and what our runs give.

`entries` reads the files in `benchmarks/papers/`, `plan` turns one into runs, `figures` measures finished runs, `verdicts`
says which claims hold, `result` puts all that into one value, and `pages` writes it as text.
"""
