# `make demo`, `make test` and `make docs` set up everything they need in .venv and then do their work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow coverage lint format docs bench clean

$(BIN)/equipoise: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/equipoise
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(BIN)/equipoise
	$(BIN)/equipoise compare clinics --seeds 5 --eval-every 4 \
	  --methods "fedavg,fedequilibria,fedequilibria(t=0.9, fim_scale='mean'),eagle,f2dc,fedheal,fedfe"

# A test process that dies or hangs ends the run as a failure: it is not started again.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --max-worker-restart=0

test: lint
	$(PYTEST)

# What needs a real server, a browser or many processes: two files at a time, because much of it is waiting.
test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --max-worker-restart=0

coverage: $(VENV)/.dev
	$(PYTEST) --cov

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(BIN)/equipoise
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/draw_rooms.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # a notice of its makers: see docs/dependencies.md

PEERS := .venv-peers

# The peers' own dependencies would pull other builds of torch: ours goes in first.
$(PEERS)/.done:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet "torch>=2.6,<2.14" numpy
	$(PEERS)/bin/python -m pip install --quiet "flwr[simulation]==1.41.0" "pfl==0.6.0"
	$(PEERS)/bin/python -m pip install --quiet --no-deps "flgo==0.4.4"
	$(PEERS)/bin/python -m pip install --quiet pyyaml tqdm matplotlib prettytable toolz ujson
	@touch $@

bench: $(BIN)/equipoise $(PEERS)/.done
	$(BIN)/python benchmarks/simulators.py --peers $(PEERS)/bin/python
	$(BIN)/python benchmarks/methods.py
	$(BIN)/python benchmarks/server_steps.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/crowd.py
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/distributed.py --server
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/loading.py

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
