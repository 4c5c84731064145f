# `make demo` and `make test` need nothing but Python 3.11 with venv, and make the environment they run in.
# A machine with a CUDA device uses it; any other machine judges through Triton's interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What is compiled once need not be compiled by each of the many processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test fast chaos lint types suite audit clean

demo: $(VENV)/.policy
	@echo '$$ drkq eval examples/softmax.py --problem softmax'
	@$(BIN)/drkq eval examples/softmax.py --problem softmax
	@echo
	@echo '$$ drkq eval examples/wrong.py examples/torch_wrapper.py --problem softmax'
	@$(BIN)/drkq eval examples/wrong.py examples/torch_wrapper.py --problem softmax; \
	 status=$$?; test $$status -eq 1 || { echo "expected exit code 1 (a kernel is at fault), got $$status"; exit 70; }
	@echo
	@echo '$$ drkq db query recent --param limit=3'
	@$(BIN)/drkq db query recent --param limit=3
	@DRKQ=$(BIN)/drkq examples/from_nothing.sh demo
	@echo
	@echo 'Next: $(BIN)/drkq --help, and demo/report.html'

# A file on one of them, since its tests share workers; three on two cores, since tests also wait.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# Types are checked beside the tests, while those wait.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types suite

suite: $(VENV)/.test
	$(PYTEST)

# What takes seconds a test is left out.
fast: $(VENV)/.test
	$(PYTEST) -m 'not slow and not chaos'

# What kills and breaks services takes minutes, and is left out of `make test`.
chaos: $(VENV)/.test
	$(BIN)/pytest -m chaos

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --verbose

types: $(VENV)/.test
	$(BIN)/mypy

# In an environment of its own: it needs packages that drkq does not.
audit: $(VENV)/audit/.ready
	@$(VENV)/audit/bin/python deploy/audit.py

$(VENV)/audit/.ready: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet 'pip-audit>=2.10'
	@touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps are older than pyproject.toml when the dependencies may have changed, and only then pip runs.
$(VENV)/.policy: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[worker,policy]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.policy
