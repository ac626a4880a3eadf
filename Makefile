# Every routine of the project. Each target sets up what it needs, in the clone:
#
#   make demo    the main job: a model with kernels, pickled and copied     (python -m safepickle demo)
#   make test    the whole suite, then its core part on each other Python that is found
#   make lint    ruff          make types   mypy, strict
#   make sanitize  the compiled modules' tests once more, built with the address and undefined behaviour sanitizers
#   make guard   has anything become slower? In counts; part of make test    (python -m tests.guard update)
#   make bench   the benchmarks, into benchmarks/results/, and their page; about a quarter of an hour
#   make proof   what each engine carries, there and back, without and with safepickle; most of an hour
#   make clean   removes the environments and what was built
#
# Variables: PYTHON (which interpreter gets the frameworks), CORE_PYTHONS, PYTEST_ARGS, PIP_ARGS, BENCH_ARGS.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

PYTHON ?= python3
CORE_PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
PYTEST_ARGS ?=
PIP_ARGS ?=
BENCH_ARGS ?=

CONSTRAINTS := ci/constraints.txt
VENV := .venv
BIN := $(VENV)/bin
# Errors are shown; progress and advice are not.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) $(PIP_ARGS)

.PHONY: help demo test test-all test-core guard sanitize lint types check bench proof clean venv

help:
	@sed -n 's/^#   //p' Makefile

# -- environments ------------------------------------------------------------------------------------------------------

# Not `.[all]`: the extra `tensorflow` asks for the distribution with GPU support, several times the size. Spark's
# functions on columns need pandas and pyarrow.
$(VENV)/installed: pyproject.toml setup.py $(wildcard safepickle/_native/*.[ch]) $(CONSTRAINTS)
	@echo "setting up $(VENV) with torch, triton, tensorflow and the engines (once; some minutes)"
	rm -rf $(VENV)
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) -e '.[torch,triton,engines,test,bench,dev]' tensorflow-cpu pandas pyarrow
	touch $@

venv: $(VENV)/installed

# -- the main job ------------------------------------------------------------------------------------------------------

demo: $(VENV)/installed
	@$(BIN)/python -m safepickle demo

# -- tests -------------------------------------------------------------------------------------------------------------

test: test-all test-core

test-all: $(VENV)/installed
	@echo "== $$($(BIN)/python --version), with torch, triton, tensorflow and the engines"
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	@ci/test-copiers.sh $(BIN)/python

test-core:
	@PYTHON_WITH_FRAMEWORKS="$(PYTHON)" ci/test-core.sh "$(CORE_PYTHONS)" $(PYTEST_ARGS)

guard: $(VENV)/installed
	$(BIN)/python -m pytest -q tests/test_guard.py

sanitize: $(VENV)/installed
	@ci/sanitize.sh $(BIN)/python

# -- checks ------------------------------------------------------------------------------------------------------------

lint: $(VENV)/installed
	@$(BIN)/ruff check .

types: $(VENV)/installed
	@$(BIN)/mypy

check: test lint types

# -- benchmarks --------------------------------------------------------------------------------------------------------

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks all $(BENCH_ARGS)

proof: $(VENV)/installed
	$(BIN)/python -m benchmarks.engines

clean:
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
