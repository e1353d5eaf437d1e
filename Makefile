# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11+, GNU make and pip, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# every install is held to the versions that were tested; torch comes first, so that no other build of it is fetched
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -q --disable-pip-version-check
# development data beside the checkout, where there is any; tests that need it are skipped elsewhere
SHARED := $(wildcard ../shared/data)
export CSADA_DATA ?= $(abspath $(SHARED))
ifeq ($(CSADA_DATA),)
unexport CSADA_DATA
endif

.PHONY: demo test failed fuzz deaths test-gpu lint audit check bench docs clean

demo: $(VENV)/installed
	$(BIN)/csada demo

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $$($(PYTHON) -c "import os; print(os.cpu_count())")

# tests with nodes, browsers and kills beside others on two busy cores may run out of time: once more, those that failed alone
failed:
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# hostile files against every reader; CASES=500 for a short run; RECORD=results/fuzz.json adds the outcome to the record
CASES ?= 5000
SEED ?= 1
fuzz: $(VENV)/installed-test
	$(BIN)/python -W ignore tests/fuzz/run.py --cases $(CASES) --seed $(SEED) $(if $(RECORD),--record $(RECORD))

# every writing command killed at random moments, on a full disk, in a folder that may not be written to, two at once
KILLS ?= 200
deaths: $(VENV)/installed-test
	$(BIN)/python -W ignore tests/deaths/run.py --kills $(KILLS) --seed $(SEED) --others $(if $(RECORD),--record $(RECORD))

# on a machine with a GPU, in the environment that it has: nothing is installed. Its outcome is a record.
test-gpu:
	PYTHONPATH=src CSADA_GPU_RECORD=results/gpu-tests.json $(PYTHON) -m pytest tests/gpu

lint: $(VENV)/installed-dev audit
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# constraints.txt: all that is installed is pinned there, and nothing in it has a known vulnerability
audit: $(VENV)/installed-dev
	$(BIN)/python tests/audit.py

check: lint test

$(VENV)/torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(PIP) -e .
	touch $@

# a browser for the tests of the report: installed in CI alone, elsewhere one that is there is used
# torchattacks asks for torchvision, which it does not need here
$(VENV)/installed-test: $(VENV)/installed
	$(PIP) -e '.[test]'
	$(PIP) --no-deps torchattacks
	if [ "$$CI" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; fi
	touch $@

$(VENV)/installed-dev: $(VENV)/installed-test
	$(PIP) -e '.[dev]'
	touch $@

docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/installed-test
	$(BIN)/python benchmarks/bench_input.py
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/table.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
