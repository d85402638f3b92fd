# Dovetail's commands. With Python 3.11 or newer and make, `make quickstart` and `make test` work in a fresh clone:
# they make a virtual environment, install what they need and run. The second time they start at once.
#
#   PYTHON=python3.13   use that Python, in an environment of its own (.venv-3.13); otherwise the one found, in .venv
#   LOCKED=1            install the exact versions of locks/requirements-<version>.txt instead of the newest
#   ARGS="..."          more arguments for pytest:  make test ARGS="tests/config -x"
#   ALL=1               run all cases of the sweep, of slow tests, or of compilation: make sweep slow compile ALL=1
#   WORKERS=4           run the tests in this many processes; each holds 8 virtual devices and about 3 GB

.DEFAULT_GOAL := help
.PHONY: help quickstart test sweep slow parity compile compiled lint format golden venv lock clean

ifdef PYTHON
  found := $(shell sh tools/find-python.sh "$(PYTHON)")
  $(if $(found),,$(error PYTHON=$(PYTHON) cannot be used; see above))
  VENV ?= .venv-$(firstword $(found))
else
  VENV ?= .venv
endif

bin := $(VENV)/bin
WORKERS ?= 2
commit = $(or $(shell git rev-parse HEAD 2>/dev/null),unknown)
# The stamps say what is installed: the package alone, or with the developers' tools, each newest or locked.
# They are removed if the environment's Python is gone.
$(shell [ -x $(bin)/python ] || rm -f $(VENV)/.dovetail-installed*)
stamp := $(VENV)/.dovetail-installed$(if $(LOCKED),-locked)
python_version = $(shell $(bin)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
lock_file = locks/requirements-$(python_version).txt
checks = "ruff check" "ruff format --check" mypy "basedpyright --pythonpath $(bin)/python" "lint-imports --no-logo"
install = $(bin)/python tools/install.py $(if $(LOCKED),--constraint $(lock_file))

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

quickstart: $(stamp) ## Install, then train a small language model on the CPU
	$(bin)/dovetail train tiny-lm

test: $(stamp)-dev ## Run the tests, without the slow ones
	$(bin)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

sweep: $(stamp)-dev ## Run a third of the tests marked sweep, chosen by the commit; ALL=1 runs all
	$(bin)/python -m pytest -m sweep $(if $(ALL),,--third=$(commit)) --numprocesses $(WORKERS) $(ARGS)

slow: $(stamp)-dev ## Run a third of the tests marked slow, chosen by the commit; ALL=1 runs all
	DOVETAIL_TEST_OPTIMISED=1 $(bin)/python -m pytest -m slow $(if $(ALL),,--third=$(commit)) --numprocesses $(WORKERS) $(ARGS)

parity: $(stamp)-parity ## Compare every model family with transformers, which needs torch
	DOVETAIL_PARITY=1 $(bin)/python -m pytest tests/parity $(ARGS)

# In an environment of its own: with libtpu installed, JAX looks for a TPU whenever it starts. Without the variable a
# missing compiler would only skip tests.
compile: ## Compile the kernels for TPUs and GPUs, with no device
	@$(MAKE) --no-print-directory VENV=$(VENV)-compile compiled

compiled: $(stamp)-compile
	DOVETAIL_COMPILERS=1 $(bin)/python -m pytest tests/compile -m compile $(if $(ALL),,--third=$(commit)) --numprocesses $(WORKERS) $(ARGS)

lint: $(stamp)-dev ## Check style, types and the layering of the subpackages
	@failed=; for check in $(checks); do \
	    echo "$$check"; $(bin)/$$check || failed="$$failed, $$check"; \
	done; [ -z "$$failed" ] || { echo "These checks failed: $${failed#, }" >&2; exit 1; }

format: $(stamp)-dev ## Format the code and apply the safe fixes
	$(bin)/ruff check --fix-only --quiet
	$(bin)/ruff format

golden: $(stamp)-dev ## Rewrite the golden texts of the experiments
	DOVETAIL_REWRITE_GOLDEN=1 $(bin)/python -m pytest -q tests/experiments/test_golden.py
	@git diff --stat -- tests/experiments/golden

venv: $(stamp)-dev ## Make the virtual environment with everything that developers need
	@echo "$(VENV) is ready: . $(bin)/activate"

lock: $(stamp)-dev ## Record the installed versions for LOCKED=1
	@mkdir -p locks
	@{ echo "# Written by make lock; installed by make venv LOCKED=1. Python $(python_version)."; \
	   $(bin)/python -m pip list --disable-pip-version-check --format=freeze \
	       --exclude-editable --exclude pip --exclude setuptools --exclude dovetail; } > $(lock_file)
	@echo "wrote $(lock_file)"

clean: ## Remove caches and build products (not the environments, not runs/)
	rm -rf build dist .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find dovetail tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(stamp): pyproject.toml $(bin)/python
	@$(install)
	@rm -f $(VENV)/.dovetail-installed*
	@touch $@

$(stamp)-dev: pyproject.toml $(bin)/python
	@$(install) --extras dev
	@rm -f $(VENV)/.dovetail-installed*
	@touch $(stamp) $@

$(stamp)-parity: $(stamp)-dev
	@$(bin)/python tools/install.py --extras dev,parity --constraint locks/parity.txt
	@touch $@

$(stamp)-compile: pyproject.toml $(bin)/python
	@$(install) --extras dev,compile
	@touch $@

# If an environment's Python is gone, the rest of the environment is cleared first.
$(bin)/python:
	@set -e; found=$$(sh tools/find-python.sh $(if $(PYTHON),"$(PYTHON)")); \
	    echo "Making $(VENV) with Python $$found" | sed 's/\(Python [0-9.]*\) \(.*\)/\1 (\2)/'; \
	    "$${found#* }" -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) $(VENV)
