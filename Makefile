# Two commands set everything up by themselves: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Files that mark what the virtual environment holds: pip and PyTorch, what the demo needs, what the tests need,
# what the site needs.
TORCH := $(VENV)/.torch
LAB := $(VENV)/.lab
TEST := $(VENV)/.test
DOCS := $(VENV)/.docs
# The virtual environment has the newest supported transformers. This folder has the oldest: tests/models run with both. The
# oldest needs an older huggingface_hub, and that needs httpx.
OLDEST := $(VENV)/transformers-5.17
OLDEST_PINS := transformers==5.17.0 huggingface_hub==1.33.0 httpx==0.28.1 httpcore==1.0.9 certifi==2026.10.18
# --no-compile: Python compiles the few modules that are used when they are first imported, and keeps the result. Where
# PYTHONDONTWRITEBYTECODE is set, as in many containers, every process would compile PyTorch anew: 5 to 15 seconds each.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: help demo test lint types pytest fuzz kill ray browser docs docs-serve reproduce bench bench-gpu clean

help:
	@echo "make demo    seven contenders, treated alike, learn recall on the CPU in minutes; table, curves, pages under runs/demo"
	@echo "make test    ruff, mypy and pytest, as CI runs them"
	@echo "make fuzz    damaged files, odd settings and arguments: TRIES=100000 of each kind, SEED=0"
	@echo "make kill    kill every writer at random moments and resume it (TRIES=100); about half an hour"
	@echo "make ray     sweeps on a local Ray cluster of two nodes, one of which is killed; installs Ray, takes minutes"
	@echo "make reproduce  the paper's experiments at their small size; page under runs/report, records under runs/quick"
	@echo "make bench   speed and memory of the CPU forms; writes benchmarks/results/cpu.json"
	@echo "make bench-gpu  the GPU kernels beside their peers (PEERS=folder); writes benchmarks/results/gpu.json"
	@echo "make docs    the documentation as a site that needs no network, in site/; make docs-serve serves it while you write"
	@echo "make clean   remove the virtual environment and all caches"

# A new pip first: the one that comes with Python 3.11 takes twice as long. Then torch, by its exact version: nothing
# installed later may choose another build.
$(TORCH): constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) pip
	@echo "installing PyTorch: 0.2 GB to download, 0.9 GB on disk, half a minute"
	@$(PIP) setuptools "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(LAB): $(TORCH) pyproject.toml constraints.txt
	@echo "installing varla and what its lab needs: 0.1 GB to download, 0.2 GB on disk, half a minute"
	@$(PIP) --no-build-isolation -e ".[lab]"
	@touch $@

$(TEST): $(LAB)
	@echo "installing what the tests need: 0.5 GB to download, 1.9 GB on disk, about a minute"
	@$(PIP) --no-build-isolation -e ".[test]"
	@touch $@

$(DOCS): $(LAB)
	@echo "installing what the site needs: 0.1 GB to download, 0.2 GB on disk, half a minute"
	@$(PIP) --no-build-isolation -e ".[docs]"
	@touch $@

$(OLDEST)/.ready: $(TORCH) Makefile
	@echo "installing transformers 5.17, the oldest supported"
	@rm -rf $(OLDEST)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target $(OLDEST) $(OLDEST_PINS)
	@touch $@

# The report's page is tested in Chromium. As root on Debian, make installs it; elsewhere those tests are skipped.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "installing Chromium: 0.1 GB to download, about a minute" \
		&& { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium; } >/dev/null; } \
		|| echo "chromium is not installed: tests of the report in a browser will be skipped"

demo: $(LAB)
	@$(BIN)/varla demo --out runs/demo

# What can run side by side does: ruff and mypy while the last tools are still being installed.
test:
	@$(MAKE) --no-print-directory -j3 lint types $(OLDEST)/.ready browser
	@$(MAKE) --no-print-directory pytest

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST)
	$(BIN)/mypy

pytest: $(TEST) $(OLDEST)/.ready browser
	VARLA_TRANSFORMERS=5.22 $(BIN)/pytest -n 2 --dist worksteal
	VARLA_TRANSFORMERS=5.17 PYTHONPATH=$(abspath $(OLDEST)) $(BIN)/pytest -n 2 --dist worksteal tests/models tests/session/test_session.py tests/lm/test_training.py

# Minutes to hours. `make test` does a minute of all kinds, with a fixed seed.
fuzz: $(TEST)
	$(BIN)/python -W ignore -m tests.fuzz --tries $(or $(TRIES),100000) --seed $(or $(SEED),0)

kill: $(TEST)
	$(BIN)/python -m tests.kill --tries $(or $(TRIES),100)

# Not in `make test`: Ray takes 0.25 GB, and its clusters a minute and a half.
ray: $(TEST)
	@$(PIP) --no-build-isolation -e ".[ray]"
	$(BIN)/pytest tests/training/test_ray.py

# Strictly: a link or a name that does not hold is an error. Not quietly: MkDocs would not count its warnings then. The
# variable silences the theme's news of its successor.
docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

docs-serve: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch src

# Into a folder of its own: all runs are recorded in reports/ already, and a recorded run is not made again.
reproduce: $(LAB)
	$(BIN)/python -m reproduction run --reports runs/quick
	$(BIN)/python -m reproduction report --reports runs/quick

bench: $(TEST)
	$(BIN)/python -m benchmarks.cpu

# With the machine's own Python: the virtual environment here has PyTorch's CPU build.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu $(if $(PEERS),--peers $(PEERS))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
