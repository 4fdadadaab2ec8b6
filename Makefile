# The commands of this repository; `make help` lists them. Everything runs in .venv, which `make setup` makes.
.DEFAULT_GOAL := help
.PHONY: help setup check lint types test docs cases chaos bench bench-peers demo dist clean

PY := .venv/bin/python
SECONDS ?= 60
SEED ?=
STORE ?=
ROUNDS ?= 5
BENCHMARKS ?= enqueue bulk drain retry latency webhooks ingress fairness heavy cost outage breakdown idle growth promote contention inbox size spool_peers

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## a virtual environment with all that tests and checks need
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test,dev]'

check: lint types test ## what CI runs: lint, types, tests

lint: ## ruff: rules and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: ## mypy --strict, as on Linux and as on macOS
	.venv/bin/mypy
	.venv/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin

test: ## the tests that run by default
	.venv/bin/pytest

cases: ## the trial cases, the long ones too
	.venv/bin/pytest -m "slow or not slow" tests/cases $(shell grep -o '`[a-z_/]*\.py::[a-z_0-9]*`' tests/cases/README.md | tr -d '`' | sort -u | grep -v ^cases/ | sed 's,^,tests/,')

chaos: ## long runs with kills: make chaos SECONDS=60 SEED=7 STORE=spool
	CHAOS_SECONDS=$(SECONDS) CHAOS_SEED=$(SEED) .venv/bin/pytest -n 0 --timeout 1200 -m "slow or not slow" tests/chaos -s $(if $(STORE),-k $(STORE))

bench: ## the benchmarks, one after the other, each into benchmarks/results: make bench BENCHMARKS="drain latency"
	mkdir -p benchmarks/results
	for b in $(BENCHMARKS); do $(PY) benchmarks/$$b.py >benchmarks/results/$$b.txt || exit 1; cat benchmarks/results/$$b.txt; echo; done

bench-peers: ## batchq beside other job queues, which are installed into environments of their own: make bench-peers ROUNDS=2
	$(PY) benchmarks/compare.py --rounds $(ROUNDS) --json benchmarks/results/peers.json
	$(PY) benchmarks/compare.py --report benchmarks/results/peers.json

docs: ## the documentation in ./site, with its links checked; make docs-serve shows it while it is written
	.venv/bin/pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict -q

docs-serve:
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve

demo: ## the main job on generated input
	.venv/bin/batchq demo

dist: ## the sdist, and the wheel made from it
	$(PY) -m build

clean: ## what builds and runs leave behind
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
