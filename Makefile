# Two commands set everything up by themselves: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The oldest transformers that is supported, beside the newest, which is in the virtual environment: tests/models are run
# with both. It needs an older huggingface_hub, and that needs httpx.
OLDEST := $(VENV)/transformers-5.17
OLDEST_PINS := transformers==5.17.0 huggingface_hub==1.33.0 httpx==0.28.1 httpcore==1.0.9 certifi==2026.10.18

.PHONY: help demo test lint types pytest browser bench bench-gpu clean

help:
	@echo "make demo    four mechanisms learn associative recall on the CPU; table, picture, page under runs/demo"
	@echo "make test    ruff, mypy and pytest, as CI runs them"
	@echo "make bench   speed and memory of the CPU forms; writes benchmarks/results/cpu.json"
	@echo "make bench-gpu  the GPU kernels beside their peers (PEERS=folder); writes benchmarks/results/gpu.json"
	@echo "make clean   remove the virtual environment and all caches"

# torch first and by its exact version: nothing after it may choose another build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

demo: $(READY)
	$(BIN)/varla demo --out runs/demo

test: lint types pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

pytest: $(READY) $(OLDEST)/.ready browser
	VARLA_TRANSFORMERS=5.22 $(BIN)/pytest -n 2 --dist worksteal
	VARLA_TRANSFORMERS=5.17 PYTHONPATH=$(abspath $(OLDEST)) $(BIN)/pytest -n 2 --dist worksteal tests/models tests/session/test_session.py tests/lm/test_training.py

$(OLDEST)/.ready: $(READY) Makefile
	rm -rf $(OLDEST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(OLDEST) $(OLDEST_PINS)
	touch $@

# The report's page is tested in Chromium. Debian's is installed where it is missing and may be; elsewhere those tests skip.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium; }; } \
		|| echo "chromium is not installed: tests of the report in a browser will be skipped"

bench: $(READY)
	$(BIN)/python -m benchmarks.cpu

# With the machine's own Python: the virtual environment here has PyTorch's CPU build.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu $(if $(PEERS),--peers $(PEERS))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
