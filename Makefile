# Everything a checkout needs. `make` alone lists the targets.

# Any Python from 3.11 on; `make PYTHON=python3.13 demo` takes another one.
PYTHON ?= python3
# For `make lock`, and what fills environments if this is uv: it takes a tenth of pip's time.
UV ?= uv
INSTALLER ?= pip
# Where the virtual environment lives, and what is installed into it. The oldest allowed versions:
# `make VENV=.venv-oldest LOCKED=requirements-oldest.lock test`.
VENV ?= .venv
LOCKED ?= requirements.lock
# Passed on to pytest: `make test PYTEST_ARGS="-k approval"`.
PYTEST_ARGS ?=
# How long `make drill-full` soaks, such as 10m; 0 for not at all.
SOAK ?= 1h
# One round of its soak again, as it was printed: `make drill-full ROUND=4711-17`.
ROUND ?=
# How many random examples each property has (tests/property), each time others; empty: the fixed
# ones. `make test-properties PROPERTY_EXAMPLES=5000`.
PROPERTY_EXAMPLES ?=
# Test processes; more than the two cores this is planned for, because most tests wait for servers.
TEST_PROCESSES ?= 3

# The same for what builds the pages of docs/, for what looks at the image's packages, and for these.
DOCS_VENV ?= .venv-docs
SUPPLY_VENV ?= .venv-supply-chain
RUNTIME_VENV ?= .venv-runtime
# Where `make sbom` writes.
SBOM ?= dist/surehand.cdx.json

# Fills an environment from a lock.
install = $(if $(filter uv,$(INSTALLER)),"$(UV)" pip install --python "$(1)/bin/python",\
	"$(1)/bin/pip" install --disable-pip-version-check) --quiet --require-hashes -r $(2)

PY := $(VENV)/bin/python
# The Temporal CLI is found, or built, before the first test waits for it.
TESTS = "$(PY)" starter.py server --print-cli > /dev/null \
	&& "$(PY)" -m tests -n "$(TEST_PROCESSES)" --dist worksteal
INSTALLED := $(VENV)/.installed
COMMAND := $(VENV)/bin/surehand
DOCS_INSTALLED := $(DOCS_VENV)/.installed
SUPPLY_INSTALLED := $(SUPPLY_VENV)/.installed
RUNTIME_INSTALLED := $(RUNTIME_VENV)/.installed
LOCK = $(UV) --no-config pip compile --universal --python-version 3.11 \
	--generate-hashes --no-annotate --custom-compile-command "make lock" --quiet

.DEFAULT_GOAL := help
.PHONY: help venv demo drill-full bench proof test test-all test-full test-exhaustive test-properties test-cluster check \
	format reference screenshots docs dev worker lock check-compose check-kubernetes dist sbom audit clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) $(COMMAND) ## Create the virtual environment from requirements.lock, when that changed

$(INSTALLED): $(LOCKED)
	@command -v "$(PYTHON)" > /dev/null \
		|| { echo "$(PYTHON) is not on PATH: install Python 3.11 or newer, or name it: make PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11: name a newer one: make PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null \
		|| { echo "$(PYTHON) cannot create virtual environments: apt-get install python3-venv (Debian, Ubuntu)"; exit 1; }
	@echo "Installing $(LOCKED) into $(VENV) (about half a minute)"
	@"$(PYTHON)" -m venv --clear "$(VENV)"
	@$(call install,$(VENV),$(LOCKED))
	@touch "$@"

# The commands, as a wheel installs them, but of this checkout.
$(COMMAND): $(INSTALLED)
	@printf '#!%s\nimport sys\nsys.path.insert(0, "%s")\nfrom surehand.starter import main\nmain()\n' \
		"$(abspath $(PY))" "$(CURDIR)" > "$@"
	@printf '#!%s\nimport runpy\nrunpy.run_path("%s", run_name="__main__")\n' \
		"$(abspath $(PY))" "$(CURDIR)/surehand/verify.py" > "$@-verify"
	@chmod +x "$@" "$@-verify"

demo: venv ## See it work: embedded server, worker, example shop, a plan with an approval
	@"$(PY)" starter.py demo

drill-full: venv ## Kill workers everywhere in the shop's plans, then soak; goes on behind the last drill that was done
	@mkdir -p .surehand/drill
	@"$(PY)" -m surehand.examples.shop --port 0 --db .surehand/drill/shop.sqlite -- \
		"$(PY)" -m tests.drill_full --soak "$(SOAK)" --round "$(ROUND)"

bench: venv ## Measure what BENCHMARKS.md shows (about two hours; needs PostgreSQL)
	@"$(PY)" -m benchmarks.steps --json .surehand/benchmarks/steps.json
	@"$(PY)" -m benchmarks.runs --json .surehand/benchmarks/runs.json
	@"$(PY)" -m benchmarks.recovery --json .surehand/benchmarks/recovery.json
	@"$(PY)" -m benchmarks.waiting --json .surehand/benchmarks/waiting.json
	@"$(PY)" -m benchmarks.peers --json .surehand/benchmarks/peers.json

proof: venv ## Run what proves the requirements that others wrote, and write docs/proof.md (minutes)
	@"$(PY)" starter.py server --print-cli > /dev/null
	@"$(PY)" -m tests.proof -n "$(TEST_PROCESSES)" $(PYTEST_ARGS)

test: venv ## Run what needs no server, and for each guarantee a real kill; under four minutes
	@$(TESTS) -m "not full" $(PYTEST_ARGS)

test-all: test test-full test-exhaustive test-properties test-cluster ## Run every test; needs PostgreSQL, Chromium and Go; about an hour

test-full: venv ## Run what `make test` leaves out: PostgreSQL, whole runs, browser, drill
	@$(TESTS) -m "full and not property and not cluster and not exhaustive" $(PYTEST_ARGS)

test-exhaustive: venv ## Play what `make test-full` leaves out of large tables and of benchmarks; not in CI
	@$(TESTS) -m exhaustive $(PYTEST_ARGS)

test-properties: venv ## Search for random plans, faults and decisions that break a guarantee
	@export PROPERTY_EXAMPLES="$(PROPERTY_EXAMPLES)"; $(TESTS) tests/property $(PYTEST_ARGS)

test-cluster: venv ## Start what docker-compose.yml starts, without Docker (needs Go, PostgreSQL)
	@"$(PY)" -m tests tests/cluster -m cluster $(PYTEST_ARGS)

check: venv ## Lint, formatting and types, as CI does
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/mypy"

format: venv ## Format the code and mend what lint can mend
	"$(VENV)/bin/ruff" check --fix --quiet .
	"$(VENV)/bin/ruff" format .

reference: venv ## Write docs/reference/ and the demo's picture anew from the code
	@"$(PY)" -m docs.reference
	@"$(PY)" -m docs.pictures

screenshots: venv ## Have browser tests take the pictures of the approvers' pages anew (needs Chromium)
	@"$(PY)" -m docs.pictures --pages

$(DOCS_INSTALLED): requirements-docs.lock
	@echo "Installing requirements-docs.lock into $(DOCS_VENV)"
	@"$(PYTHON)" -m venv --clear "$(DOCS_VENV)"
	@$(call install,$(DOCS_VENV),requirements-docs.lock)
	@touch "$@"

docs: $(DOCS_INSTALLED) ## Build the pages of docs/ into site/; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 "$(DOCS_VENV)/bin/mkdocs" build --strict

dev: venv ## Run the embedded Temporal server in the foreground
	@"$(PY)" starter.py server

worker: venv ## Run a worker in the foreground
	@"$(PY)" worker.py

lock: ## Resolve the dependencies anew (needs uv and npm)
	@command -v "$(UV)" > /dev/null \
		|| { echo "uv is not on PATH: install it, or name it: make UV=... lock"; exit 1; }
	$(LOCK) pyproject.toml --extra dev --output-file requirements.lock
	$(LOCK) pyproject.toml --extra dev --resolution lowest-direct --output-file requirements-oldest.lock
	$(LOCK) pyproject.toml --extra approvals --extra opentelemetry --constraint requirements.lock --output-file requirements-runtime.lock
	$(LOCK) --group docs --output-file requirements-docs.lock
	$(LOCK) --group supply-chain --output-file requirements-supply-chain.lock
	$(LOCK) --group ci --output-file .ci/requirements.lock
	$(LOCK) tests/mcp/servers/requirements.in --output-file tests/mcp/servers/requirements.lock
	cd tests/mcp/servers && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund
	cd tests/oidc/provider && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund
	cd tests/browser/axe && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund
	cd tests/proof/conformance && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

check-compose: ## Check docker-compose.yml with Compose's own loader (needs Go)
	@command -v go > /dev/null || { echo "Go is not on PATH: install Go 1.25 or newer"; exit 1; }
	@go -C deploy/composecheck run . ../../docker-compose.yml ../../.env.example

check-kubernetes: ## Build deploy/kubernetes and check it with Kubernetes' own schemas (needs Go)
	@command -v go > /dev/null || { echo "Go is not on PATH: install Go 1.25 or newer"; exit 1; }
	@go -C deploy/kubecheck run . ../kubernetes/workers ../kubernetes/controller

$(SUPPLY_INSTALLED): requirements-supply-chain.lock
	@echo "Installing requirements-supply-chain.lock into $(SUPPLY_VENV)"
	@"$(PYTHON)" -m venv --clear "$(SUPPLY_VENV)"
	@$(call install,$(SUPPLY_VENV),requirements-supply-chain.lock)
	@touch "$@"

# What the image has, and not even pip beside it.
$(RUNTIME_INSTALLED): requirements-runtime.lock $(SUPPLY_INSTALLED)
	@echo "Installing requirements-runtime.lock into $(RUNTIME_VENV)"
	@"$(PYTHON)" -m venv --clear --without-pip "$(RUNTIME_VENV)"
	@$(if $(filter uv,$(INSTALLER)),$(call install,$(RUNTIME_VENV),requirements-runtime.lock),\
		"$(SUPPLY_VENV)/bin/pip" --python "$(RUNTIME_VENV)" install --quiet --require-hashes -r requirements-runtime.lock)
	@touch "$@"

sbom: $(RUNTIME_INSTALLED) ## List what the image's Python has inside, with licences (CycloneDX)
	@mkdir -p "$(dir $(SBOM))"
	@"$(SUPPLY_VENV)/bin/cyclonedx-py" environment --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-format JSON --output-file "$(SBOM)" "$(RUNTIME_VENV)/bin/python"
	@echo "$(SBOM)"

audit: $(SUPPLY_INSTALLED) ## Ask after known vulnerabilities of what the image has inside
	@.ci/audit "$(SUPPLY_VENV)/bin/pip-audit"

# Of the last commit: what lies about in a checkout is in no release.
dist: $(SUPPLY_INSTALLED) ## Build wheel and sdist of the last commit, and check them
	@rm -rf dist/source dist/*.whl dist/*.tar.gz && mkdir -p dist/source && git archive HEAD | tar -x -C dist/source
	@"$(SUPPLY_VENV)/bin/python" -m build --outdir dist dist/source > dist/build.log || { cat dist/build.log; exit 1; }
	@rm -rf dist/source
	@"$(SUPPLY_VENV)/bin/twine" check --strict dist/*.whl dist/*.tar.gz

clean: ## Remove the virtual environment and caches; data in .surehand/ stays
	rm -rf "$(VENV)" "$(DOCS_VENV)" "$(SUPPLY_VENV)" "$(RUNTIME_VENV)" site build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
