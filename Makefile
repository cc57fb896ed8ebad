# Every target runs from a fresh clone; `make help` lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/hloipu: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

.PHONY: install
install: $(BIN)/hloipu ## editable install with the dev tools, in .venv

.PHONY: test
test: install ## run the tests
	$(BIN)/python -m pytest -q -n 2

.PHONY: check
check: install ## what CI runs: format, lint, types, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2

.PHONY: clean
clean: ## remove what the targets made
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache
