# Everything stays inside this folder: the virtual environment, caches, runs.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/xla
# Hundreds of processes import Flatout: each would compile its modules, and pytest all tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install train test test-slow test-avx2 faults lint docs smoke cell constraints release peers regress

# In CI all packages have the versions that passed the tests last: a new release breaks no change that
# has nothing to do with it. They are those of Python 3.11; other Pythons take the newest.
PIP := -m pip install --quiet --disable-pip-version-check $(if $(filter true,$(CI)),--constraint constraints.txt)

install: .venv/.installed

.venv/.installed: pyproject.toml explain/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Flatout needs Python 3.11 or newer; pass PYTHON=/path/to/python3.11")'
	@echo "setting up .venv (20 to 90 seconds, once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) -e ./explain -e .
	@touch $@

.venv/.developing: .venv/.installed
	@echo "adding what the tests need"
	@$(BIN)/python $(PIP) $$($(BIN)/python tools/dev_requirements.py)
	@touch $@

.venv/.documenting: .venv/.installed
	@echo "adding what the documentation needs"
	@$(BIN)/python $(PIP) $$($(BIN)/python tools/dev_requirements.py docs)
	@touch $@

constraints: install .venv/.developing .venv/.documenting
	@$(BIN)/python tools/write_constraints.py

train: install
	@$(BIN)/flatout train ppo --preset cartpole-ppo
	@echo "to go on, type: source $(BIN)/activate, then flatout, which shows what you can do"

# Three for two cores: many tests wait for processes. Who is done takes tests from the others.
WORKERS ?= 3
SPREAD := -n $(WORKERS) --dist worksteal
PYTEST := $(BIN)/python -m pytest $(SPREAD)

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

# The quick tests, and those of equal bits, with another Python and JAX, in an environment of their
# own: make cell PYTHON=python3.12 JAX=0.10 (or newest)
JAX ?= newest
CELL = .cache/cells/$(shell $(PYTHON) -c "import sys; print('python%d.%d' % sys.version_info[:2])")-jax-$(JAX)
cell:
	@$(PYTHON) -m venv $(CELL)
	@$(CELL)/bin/python $(PIP) -e ./explain -e . \
		$$($(PYTHON) tools/dev_requirements.py) $(if $(filter newest,$(JAX)),,"jax==$(JAX).*")
	@$(CELL)/bin/python -c "import sys, jax; print('Python', sys.version.split()[0], 'JAX', jax.__version__)"
	$(CELL)/bin/python -m pytest $(SPREAD)
	$(CELL)/bin/python -m pytest $(SPREAD) -m "bits and not further"

# Both distributions into dist/, ready to be uploaded; while facts are missing, their list.
release:
	@$(PYTHON) tools/release.py

# The libraries that Flatout is compared with, each in an environment of its own. One that does not
# install is named, and benchmarks skip its rows. PEERS="sb3 rejax" makes some. Without a GPU:
#   make peers PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
PEERS ?= $(patsubst benchmarks/peers/requirements-%.txt,%,$(wildcard benchmarks/peers/requirements-*.txt))

peers:
	@for name in $(PEERS); do \
		echo "peer: $$name"; folder=benchmarks/.venv-$$name; found=$$([ -d $$folder ] && echo yes); \
		$(PYTHON) -m venv $$folder && \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check \
			-r benchmarks/peers/requirements-$$name.txt || { \
			[ "$$found" ] || rm -rf $$folder; \
			echo "$$name does not install here: its rows are skipped"; \
		}; \
	done

# CPU seconds per step of this source and of a commit, in turns; 1 if a median is over 3 % higher:
#   make regress BASE=main
regress: install
	$(BIN)/python benchmarks/regress.py $(BASE)
