# make demo: broker, coordinator and 20 agents on this machine, a table and report.html.  make test: lint and tests.
# Each sets up its own environment in .venv; a second call uses it as it is.
#
#   make demo DEMO="--algorithm apfl --rounds 20"     options of the demo
#   make test TESTS="tests/test_tree.py -k dot"       some tests alone, without the linters
#   make demo TORCH=cuda                              a CUDA build of torch, several GB
#   make demo PYTHON=python3.12                       another interpreter, 3.11 or newer
#   make matrix                                       the tests with every cell of their matrices, not a covering part
#   make soak                                         the twelve promises in full, and 30 minutes with 1,000 devices:
#                                                     two to three hours, two cores, 4 GB of memory and 20 GB of disk
#   make soak SEED=7                                  the same with other faults
#   PIP_EXTRA, TORCH_SPEC                             where torch comes from: see CONTRIBUTING.md

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3) python3)
TORCH ?= cpu
VENV ?= $(if $(filter cpu,$(TORCH)),.venv,.venv-$(TORCH))
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
PIP_EXTRA ?=
DEMO ?=
TESTS ?=
SEED ?= 0
PROMISES ?= promises.jsonl

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet $(PIP_EXTRA) --constraint constraints.txt
STAMP := $(VENV)/.edgepfl

ifeq ($(TORCH),cpu)
# Where both builds resolve, the one named +cpu must win; where only the plain one does, it has to serve.
TORCH_SPEC ?= torch==$(TORCH_VERSION)+cpu
else
TORCH_SPEC ?= torch==$(TORCH_VERSION)
endif

# One more than there are cores: some tests wait for processes and networks.  Each calculates on one thread: with a
# thread for each core in each worker, they spin while they wait for each other, a quarter of all processor time.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test matrix soak lint format clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

demo: $(STAMP)-sim
	$(BIN)/edgepfl demo $(DEMO)

test: $(STAMP)-dev
ifeq ($(TESTS),)
	$(MAKE) --no-print-directory lint
	$(PYTEST)
else
	$(BIN)/python -m pytest $(TESTS)
endif

matrix: $(STAMP)-dev
	EDGEPFL_MATRIX=full $(PYTEST)

soak: $(STAMP)-dev
	EDGEPFL_SOAK=1 EDGEPFL_SEED=$(SEED) EDGEPFL_PROMISES_JSON=$(PROMISES) OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -m promise -s tests
	@echo "What was measured is in $(PROMISES), a line of JSON for each test."

lint: $(STAMP)-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files --show-diff-on-failure

format: $(STAMP)-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP)-torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "edgepfl needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) '$(TORCH_SPEC)' || { \
	  test '$(TORCH)' = cpu && test '$(TORCH_SPEC)' = 'torch==$(TORCH_VERSION)+cpu' && \
	  echo "No CPU build of torch under that name: taking torch==$(TORCH_VERSION), on Linux several GB with CUDA." && \
	  echo "CONTRIBUTING.md, 'A small torch', says how to avoid that." && \
	  $(INSTALL) 'torch==$(TORCH_VERSION)'; }
	@touch $@

$(STAMP)-sim: $(STAMP)-torch pyproject.toml constraints.txt
	@echo "Installing edgepfl and what the demo needs into $(VENV)"
	@$(INSTALL) --editable '.[sim]'
	@touch $@

$(STAMP)-dev: $(STAMP)-torch pyproject.toml constraints.txt
	@echo "Installing edgepfl and what the tests need into $(VENV)"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(STAMP)-sim
