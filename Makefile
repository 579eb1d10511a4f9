# `make demo` and `make test` set up everything they need in .venv and then do their work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format bench clean

$(BIN)/equipoise: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/equipoise
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(BIN)/equipoise
	$(BIN)/equipoise compare scanners

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --cov -n auto --dist loadfile --max-worker-restart=0

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

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
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/loading.py

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
