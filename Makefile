# make venv | demo | test | test-all | check | screenshots: each does its own set-up and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
# oneDNN's AMX path dies with SIGILL on some cloud machines that announce AMX but lack it; this cap is harmless elsewhere.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: venv demo test test-all format lint types check screenshots clean

venv: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: venv
	$(BIN)/vitrail demo

test: venv
	$(BIN)/pytest

# With what takes minutes.
test-all: venv
	$(BIN)/pytest -m "slow or not slow"

format: venv
	$(BIN)/ruff format --check

lint: venv
	$(BIN)/ruff check

types: venv
	$(BIN)/mypy

check: format lint types test

# The README's pictures of a report, taken by Chromium: of the demo, or RUN=runs/my-run.
RUN ?= runs/demo
screenshots: venv
	test -f $(RUN)/report.html || $(BIN)/vitrail demo
	VITRAIL_SCREENSHOTS=$(RUN)/report.html $(BIN)/pytest -n 0 tests/training/report/test_outcome.py -k real_run

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
