# Everything stays inside this folder: the virtual environment, caches, runs.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/xla
# Hundreds of processes import Flatout: each would compile its modules, and pytest all tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install train test test-slow test-avx2 faults lint docs smoke

install: .venv/.installed

.venv/.installed: pyproject.toml explain/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Flatout needs Python 3.11 or newer; pass PYTHON=/path/to/python3.11")'
	@echo "setting up .venv (20 to 90 seconds, once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./explain -e .
	@touch $@

.venv/.developing: .venv/.installed
	@echo "adding what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		$$($(BIN)/python tools/dev_requirements.py)
	@touch $@

.venv/.documenting: .venv/.installed
	@echo "adding what the documentation needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		$$($(BIN)/python tools/dev_requirements.py docs)
	@touch $@

train: install
	@$(BIN)/flatout train ppo --preset cartpole-ppo

# Three for two cores: many tests wait for processes. Who is done takes tests from the others.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal

test: install .venv/.developing
	$(PYTEST)

# The rest; then what is promised to the bit, also by quick tests, compiled as users have it.
# FURTHER=no leaves out, and names, the tests that add a seed or a cell to a property which other
# tests hold: for slow machines.
FURTHER ?= yes
LESS := $(if $(filter no,$(FURTHER)), and not further)

test-slow: install .venv/.developing
	@$(BIN)/python tools/frameworks.py
	@if [ "$(FURTHER)" = no ]; then echo "left out:"; $(BIN)/python -m pytest --collect-only -m further; fi
	$(PYTEST) -m "slow and not bits$(LESS)"
	$(PYTEST) -m "bits$(LESS)"

# What is promised to the bit, as CPUs without AVX-512 compute it; without further seeds and cells,
# which `make test-slow` runs.
AVX2 := --xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_max_isa=AVX2

test-avx2: install .venv/.developing
	@if grep -q avx512f /proc/cpuinfo 2>/dev/null; then XLA_FLAGS="$(AVX2)" $(PYTEST) -m "bits and not further"; \
		else echo "this CPU has no AVX-512: make test-slow has computed as with AVX2"; fi

# A fault that hangs once in fifty is still a hang: a round that fails or takes 10 minutes ends this.
ROUNDS ?= 50
faults: install .venv/.developing
	@mkdir -p .cache
	@for round in $$(seq $(ROUNDS)); do \
		timeout --kill-after=20 600 $(BIN)/python -m pytest -o addopts= -q --tb=short -m fault \
			2>&1 | tee .cache/fault_round.log | tail -n 1 | sed "s/^/round $$round: /"; \
		test $${PIPESTATUS[0]} -eq 0 || { cat .cache/fault_round.log; exit 1; }; \
	done

lint: install .venv/.developing
	$(BIN)/ruff check src explain tests benchmarks examples tools
	$(BIN)/ruff format --check src explain tests benchmarks examples tools
	$(BIN)/pyright

# Into site/. A link or an anchor that leads nowhere, or a page that no menu names, is an error.
docs: install .venv/.documenting
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Build, install into a new environment elsewhere, and use it: make smoke PYTHON=python3.13
smoke:
	@$(PYTHON) tools/smoke.py
