# Each target sets up .venv by itself: Python 3.11 or newer and make are all it takes.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: demo test check worker chaos long

demo: .venv/embedded.done
	@$(RUN) -m examples.refund_desk.demo

worker: .venv/embedded.done
	$(RUN) worker.py --app examples.refund_desk --dev-server

# Each run imports the workflow's modules anew: with their bytecode cached that is a tenth of a second less. The servers,
# written in Go, need less of the processor where each keeps to one core and seldom collects garbage.
TEST := PYTHONDONTWRITEBYTECODE= GOMAXPROCS=1 GOGC=800 $(RUN) -m pytest -n 4 --dist worksteal

test: .venv/dev.done
	$(TEST) -m "not long"

# Long runs, large histories, races by the hundred.
long: .venv/dev.done
	$(TEST) -m long

chaos: .venv/dev.done
	$(RUN) -m tests.chaos --kills 200 --seed 5

check: .venv/dev.done
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest tests/test_boundaries.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Steadyhand needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/embedded.done: .venv/bin/python pyproject.toml constraints.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded]'
	@touch $@

.venv/dev.done: .venv/bin/python pyproject.toml constraints.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	@touch $@
