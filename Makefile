# Every target but gpu sets up .venv by itself; only Python 3.11+, make and a C compiler are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install train test test-long chaos gpu docs lint format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.dev-stamp ## Create .venv with everything that developers need; other targets install what they need

train: $(VENV)/.runtime-stamp ## Train Tamiyo for a few minutes on this machine; leaves runs/<name>/report.html
	@$(BIN)/tamiyo train --preset quick

test: $(VENV)/.test-stamp ## Run the test-suite
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m 'not long and not (chaos and slow)'

test-long: $(VENV)/.test-stamp ## Run the tests that take minutes each, and property tests with many examples
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -m long --hypothesis-profile=explore

chaos: $(VENV)/.test-stamp ## Kill, cut off and corrupt a run in every way we know, and time how it recovers
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -s -m chaos tests/chaos -k 'not three_hundred_faults'

gpu: ## Test and measure everything on a GPU with PYTHON, which has PyTorch with CUDA; GPU_OPTIONS go to benchmarks.gpu
	@$(PYTHON) -m benchmarks.gpu $(GPU_OPTIONS)

docs: $(VENV)/.docs-stamp ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/.lint-stamp ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.lint-stamp ## Rewrite the sources in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(VENV)/.runtime-stamp ## Write the versions and hashes of the image's packages; PIP_OPTIONS go to pip
	@$(BIN)/python deploy/image/lock.py $(PIP_OPTIONS)

clean: ## Remove .venv and caches; runs/ stays
	@rm -rf $(VENV) .gpu dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.runtime-stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "tamiyo: Python 3.11 or newer is needed, as python3 or as make PYTHON=/path/to/python" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned dependencies into $(VENV) (once; a minute or two)"
	@# Without a GPU, PyTorch's CPU build, which uv knows where to find: CUDA's libraries take 6 GB.
	@if test "$$(uname -s)" = Linux && ! command -v nvidia-smi > /dev/null; then \
		$(PIP) install -q -c constraints.txt uv \
		&& $(BIN)/uv pip install -q --python $(BIN)/python --no-deps --torch-backend cpu -c constraints.txt torch \
		|| echo "PyTorch's CPU build cannot be fetched: pip chooses a build"; fi
	@$(PIP) install -c constraints.txt -e .
	@$(BIN)/python -m compileall -qq actors learner deploy tamiyo.py
	@touch $@

# With an extra of pyproject.toml.
$(VENV)/.%-stamp: $(VENV)/.runtime-stamp
	@$(PIP) install -c constraints.txt -e '.[$*]'
	@touch $@
