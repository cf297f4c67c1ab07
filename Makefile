# make          sets itself up in .venv and builds every kernel of variants.yaml into build/bundle
# make test     sets itself up in .venv and runs every check that needs no GPU
# make wheel    builds the wheel of the runtime into dist/
# make format   formats the sources
# make clean    removes what the above made
#
# Needs Python 3.10 or newer with venv, and a C++17 compiler.  Needs no GPU and no CUDA toolkit.
# Another Python: `make PYTHON=python3.12`, or PYTHON=python3.12 in the environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
CONFIG ?= variants.yaml

# What an editable install does not pick up by itself: metadata, and the launcher, which is compiled.
INSTALLED := pyproject.toml runtime/pyproject.toml runtime/setup.py \
	$(wildcard runtime/native/*.cpp runtime/native/*.h runtime/fa3/native/*.h)

.DELETE_ON_ERROR:
.PHONY: build test lint matrix wheel format clean

build: $(VENV)/.build-ready
	$(BIN)/fa3gen build --config $(CONFIG)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"Python {sys.version.split()[0]} is too old: set PYTHON to 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install 'pip>=23'

$(VENV)/.build-ready: $(INSTALLED) | $(BIN)/python
	$(PIP) install -e ./runtime -e .
	@touch $@

# torch comes with the extra `test`, which pins it (pyproject.toml).
$(VENV)/.test-ready: $(INSTALLED) | $(BIN)/python
	$(PIP) install -e ./runtime -e '.[test]'
	@touch $@ $(VENV)/.build-ready

test: lint matrix
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered
	$(BIN)/fa3gen verify --check

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

# `verify --check` compares the evidence with the cubins built here.  That the rendered matrix passes ruff is a test.
matrix: $(VENV)/.test-ready
	$(BIN)/fa3gen build --config $(CONFIG)
	$(BIN)/fa3gen render --check

wheel: $(VENV)/.build-ready
	$(PIP) wheel --no-deps --wheel-dir dist ./runtime

format: $(VENV)/.test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist runtime/build runtime/fa3/native/*.so
