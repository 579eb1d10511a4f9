# `make demo` and `make test` set up everything they need in .venv and then do their work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format clean

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
	$(BIN)/python -m pytest --cov

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
