# The two commands a stranger needs are `make demo` and `make test`; both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.requirements-installed

.PHONY: help test demo lint docs manifests lock clean

help:
	@echo "make demo   run webhook and agent on the examples and show what became of each pod (KEEP=1 leaves them running)"
	@echo "make test   run the tests"
	@echo "make docs   write the documentation's tables from the code"
	@echo "make manifests  write the plain manifests and the table of rights from the chart (needs helm)"
	@echo "make lint   run ruff, mypy, import-linter and the check of regular expressions"

$(STAMP): requirements/dev.txt pyproject.toml
	@sh requirements/make-venv.sh "$(PYTHON)" "$(VENV)" requirements/dev.txt
	@touch $@

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.project.regular_expressions

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

# Writes the tables of the documentation anew from the code.
docs: $(STAMP)
	$(BIN)/python -m docs.tables docs/policy.md

# Writes plain manifests, the chart's copies, and the tables of rights. Needs helm.
manifests: $(STAMP)
	$(BIN)/python deploy/alerts/prometheusrule.py
	$(BIN)/python deploy/render.py

# Needs uv. Writes every requirement with its hashes and no index address.
lock:
	for extra in webhook agent dev; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header --no-annotate --extra $$extra pyproject.toml -o requirements/$$extra.txt; \
	done
	printf 'hatchling>=1.27\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate - -o requirements/build.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
