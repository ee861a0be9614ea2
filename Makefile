# What CONTRIBUTING.md names; `.ci/run` does all of it on a copy of the working tree.
bin := .venv/bin

.PHONY: help setup lint fast test docs bench

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-7s %s\n", $$1, $$2}' Makefile

setup:  ## an environment for all targets
	python3 -m venv .venv
	$(bin)/pip install --quiet --editable '.[test,dev,docs,examples]'

lint:  ## style, types, imports, spelling
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/codespell

fast:  ## the tests of the lower layers, in seconds
	$(bin)/python -m pytest -q -n auto --dist worksteal tests/ir tests/dataflow tests/passes tests/architecture

test:  ## all tests: the short ones, then the long ones
	$(bin)/python -m pytest -q -n auto --dist worksteal
	$(bin)/python -m pytest -q -n auto --dist worksteal -m long

docs:  ## code of pages and notebooks runs and prints what they show, then the site
	$(bin)/python docs/screens.py
	$(bin)/python docs/notebooks.py --run
	$(bin)/sphinx-build -q -W -c docs/site . build/site

bench:  ## the exact search on meshes of several shapes; see benchmarks/ for the others
	$(bin)/python benchmarks/search.py
