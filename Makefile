# Every target sets up what it needs: a virtual environment in .venv with the pinned dependencies.
#
#   make research TOPIC="Does a larger group size make GRPO learn the guessing game faster?"
#   make test        the tests
#   make check       ruff, mypy and the measures of the code
#   make house       the measures of the code, beside other projects'; fails where a goal is missed
#   make clean       remove what the targets made (studies in .ajet stay)

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOPIC ?=
ARGS ?=
export TOPIC
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of processes; where this is set each of them would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup research test check house clean
.DEFAULT_GOAL := setup

setup: $(READY)

# torch comes first and pinned: a later package would otherwise pull a build with several GB of CUDA.
$(READY): pyproject.toml constraints.txt
	@python=$$(for p in $${PYTHON:-} python3.11 python3.12 python3; do \
	    $$p -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; \
	  done); \
	if [ -z "$$python" ]; then \
	  echo "ajet: Python 3.11 or 3.12 is needed, found $$(python3 --version 2>&1); install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; \
	fi; \
	echo "setting up $(VENV) with $$($$python --version) (2 to 4 minutes the first time)"; \
	set -e; $$python -m venv $(VENV); \
	echo "  torch (CPU)"; $(BIN)/pip install -q -c constraints.txt torch; \
	echo "  everything else"; $(BIN)/pip install -q -c constraints.txt -e '.[local,dev]'; \
	$(BIN)/pip install -q --no-deps openenv==0.10.0  # tests read our traces with it; its dependencies contradict ours
	@touch $@

research: setup
	@$(BIN)/ajet research "$$TOPIC" $(ARGS)

test: setup
	@$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python benchmarks/house.py

house: setup
	@$(BIN)/python benchmarks/house.py

clean:
	@if [ -x $(BIN)/ajet ]; then $(BIN)/ajet up --stop >/dev/null 2>&1 || true; fi
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find research swarm sandboxes studies tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
