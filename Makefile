# The two commands of the README are `make run` and `make test`; `make install` is the part they share.
PYTHON ?= python3
VENV ?= .venv
# Every extra that this platform supports.
EXTRAS ?= torch,mlx,bench,dev
BIN := $(VENV)/bin
# Other people's clients have needs that exclude each other's and ours, so they live apart.
CLIENTS := $(VENV)/clients
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: run install model embedder test clients lint types clean help

help:  ## Show the targets.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: install model  ## Install, get the default model, start the daemon (ARGS="--port 9000" passes flags on).
	@exec $(BIN)/stretto serve $(ARGS)

install: $(STAMP)  ## Make the virtual environment and install everything, pinned by constraints.txt.

$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py daemon/stretto/backends/native/src/*)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Stretto needs Python 3.11 or newer; this is %d.%d. Name another: make PYTHON=python3.11 $(MAKECMDGOALS)" % v[:2])'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time this takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]' \
		|| { echo "The installation failed; see above. It needs the network. The same command tries again." >&2; exit 1; }
	@touch $(STAMP)

model: install  ## Get the default model (once; 98 MB; its checksum is verified).
	@$(BIN)/stretto pull smollm2

embedder: install  ## Get the embedding model (once; 84 MB; its checksum is verified).
	@$(BIN)/stretto pull minilm

# A file's tests stay together: they share its daemon. The files come in the order of tests/conftest.py, the longest first; by itself xdist would
# begin with those of the most tests, and end with one worker in a file of few and long ones.
test: install model embedder  ## Run the whole suite.
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

$(CLIENTS)/.installed: tests/clients/requirements.txt
	@$(CLIENTS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.txt
	@touch $@

clients: install embedder $(CLIENTS)/.installed  ## Run instructor, pydantic-ai, litellm and llm against the daemon.
	STRETTO_TEST_PYTHON=$(abspath $(BIN))/python $(CLIENTS)/bin/python -m pytest tests/clients $(ARGS)

lint: install  ## Check style.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## Check types.
	$(BIN)/mypy

clean:  ## Remove the virtual environment and caches.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
