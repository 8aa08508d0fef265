# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.qafel-installed
# One worker more than there are cores: the tests of federations wait for brokers and processes.
WORKERS := $(shell $(PYTHON) -c 'import os; print(1 + (os.cpu_count() or 1))')

# The tests start hundreds of interpreters: compiled modules make them start in half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup docs newcomer demo federation-demo chaos test test-fast test-install test-page lint format types layers tests bench reproduce-quick reproduce examples golden clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## Create .venv and install qafel with what it needs for the other targets.

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "qafel needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dashboard,data,figures,torch,tensorboard,federation,notebook,dev]'
	@touch $@

demo: setup ## QAFeL beside FedBuff on generated faces; ends with a table and a figure.
	$(BIN)/qafel demo

federation-demo: setup ## A broker, a server and eight clients on this machine; one is killed, one joins late.
	$(BIN)/qafel federation-demo

chaos: setup ## Kill servers, clients and brokers, break networks and disks, 500 faults; write results/chaos.json.
	$(BIN)/python tests/federation/chaos.py --faults 500 --out results/chaos.json

test: lint types layers tests ## Lint, type-check, check the import layers, run the tests.

test-fast: setup ## Run the tests that take no more than a few seconds each.
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not install" --ignore=tests/page --ignore=tests/site

test-install: setup ## Ask the package index whether all extras install together, look into the wheel, log to MLflow and W&B.
	$(BIN)/python -m pytest -m install tests/product/test_installation.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target .venv/loggers \
	  mlflow-skinny sqlalchemy alembic wandb
	PYTHONPATH=.venv/loggers $(BIN)/python -m pytest -m install tests/product/test_examples.py

test-page: setup ## Drive the page in Debian's chromium (apt-get install chromium); needs npm for axe-core.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	npm install --silent --no-save --prefix .venv/page axe-core@4
	AXE=.venv/page/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest tests/page -m "not install"

newcomer: docs ## Install the built wheel into a clean environment, follow the tutorial, open the page and a report.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	$(BIN)/python -m pytest tests/page/test_newcomer.py

docs: setup ## Build the documentation site into build/site, and check it.
	@mkdir -p build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet 2> build/docs.log || { cat build/docs.log; exit 1; }
	$(BIN)/python -m pytest tests/site

lint: setup ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## Repair style and format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Check types.
	$(BIN)/mypy

layers: setup ## Check which room imports which.
	$(BIN)/lint-imports

tests: setup ## Run the tests.
	$(BIN)/python -m pytest -n $(WORKERS) -m "not install" --ignore=tests/page --ignore=tests/site

bench: setup ## Time codecs, simulator and federation against their yardsticks, measure memory; write results/bench-*.json.
	$(BIN)/qafel bench codec --on benchmarks/deltas.npz --out results/bench-codec.json
	$(BIN)/qafel bench sim --out results/bench-sim.json
	$(BIN)/qafel bench memory --out results/bench-memory.json
	$(BIN)/qafel bench federation --out results/bench-federation.json

reproduce-quick: setup ## Every table and figure of the paper in miniature, on generated faces; under 10 minutes.
	$(BIN)/qafel reproduce all --quick --seeds 1

reproduce: setup ## Every table and figure of the paper; DATA=smiles32.npz for other data than generated faces.
	$(BIN)/qafel reproduce all $(if $(DATA),--data $(DATA))

examples: setup ## Run every example in full, with the real data in the folder QAFEL_DATA; write results/examples.
	for name in own_model_and_data regression_numpy lora own_quantizer federation; do \
	  QAFEL_EXAMPLES=results/examples $(BIN)/python examples/$$name.py || exit 1; done
	QAFEL_EXAMPLES=results/examples $(BIN)/python examples/cifar10_fedadam.py $(QAFEL_DATA)/cifar10.npz
	QAFEL_EXAMPLES=results/examples $(BIN)/python examples/shakespeare_lstm.py $(QAFEL_DATA)/shakespeare.txt

golden: setup ## Make the committed golden vectors anew (only when bytes change on purpose).
	$(BIN)/python tests/golden/make.py

clean: ## Remove what the other targets made.
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis runs
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
