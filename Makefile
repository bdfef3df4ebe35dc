# The front door. `make demo` and `make test` do all the set-up they need on a fresh machine:
# Python 3.11 or later, a C compiler and make are enough.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
SEEDS ?= 10000
JOBS := $(shell nproc 2>/dev/null || echo 2)

# What the compiled modules are made from; the table stands in feedhandler/_compiled.py.
SOURCES := $(shell find codecs retrans replay feedhandler -type f \
	\( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \)) \
	$(shell sed -n 's/^ *"feedhandler\..*": "\(.*\)",$$/\1/p' feedhandler/_compiled.py)

.PHONY: help demo test check format build bench bench-long soak simulate fuzz fuzz-asan clean
.DEFAULT_GOAL := help

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.compiled ## the main job, seen: exchange, gateway, subscribers (DEMO="--seconds 60")
	@$(VENV)/bin/feedhandler demo $(DEMO)

test: $(VENV)/.compiled ## everything that must pass (TESTS=tests/unit for a part)
	$(PY) -m pytest $(TESTS)

check: $(VENV)/.compiled ## style, types, import directions, compose file
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_structure_imports.py tests/unit/test_structure_files.py

format: $(VENV)/.installed ## put the sources into the house format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

build: $(VENV)/.installed ## compile (ONLY=feedhandler.codecs.scanner for a quick turn)
	FEEDHANDLER_BUILD_ONLY=$(ONLY) $(PY) setup.py -q build_ext --inplace -j $(JOBS)

bench: $(VENV)/.compiled ## ratios against peers and ceilings, under 10 minutes
	$(PY) -m bench

bench-long: $(VENV)/.compiled ## what needs longer: memory over ten minutes
	$(PY) -m bench --long

soak: $(VENV)/.compiled ## half the highest rate, 1 % loss, a fault a minute, for an hour
	$(PY) -m bench --soak

simulate: $(VENV)/.compiled ## the simulation campaign (SEEDS=10000)
	FEEDHANDLER_SEEDS=$(SEEDS) $(PY) -m pytest --timeout=0 tests/simulation

fuzz: $(VENV)/.compiled ## the mutation campaign: 100 million packets
	FEEDHANDLER_FUZZ=100000000 $(PY) -m pytest --timeout=0 tests/fuzz

fuzz-asan: $(VENV)/.compiled ## the same, shorter, with AddressSanitizer, in a copy of the tree
	rm -rf out/asan && mkdir -p out/asan
	tar c --exclude=./$(VENV) --exclude=./out --exclude=./.git --exclude='*.so' . | tar x -C out/asan
	cd out/asan && FEEDHANDLER_SANITIZE=1 FEEDHANDLER_BUILD_ONLY=$(ONLY) \
		$(CURDIR)/$(PY) setup.py -q build_ext --inplace -j $(JOBS)
	cd out/asan && LD_PRELOAD=$$($${CC:-cc} -print-file-name=libasan.so) \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc FEEDHANDLER_FUZZ=1000000 \
		$(CURDIR)/$(PY) -m pytest --timeout=0 $(or $(TESTS),tests/fuzz)

clean: ## everything that was made, the environment included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis out
	find codecs retrans replay feedhandler -type f \( -name '*.so' -o -name '*.c' \) -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Cython has much to say; it is shown where something went wrong.
COMPILE = @$(PY) setup.py -q build_ext --inplace -j $(JOBS) >$(VENV)/build.log 2>&1 || \
	{ cat $(VENV)/build.log >&2; exit 1; }

# The environment: made once, and again when what it installs changes.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "feedhandler needs Python 3.11 or later; name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || \
		{ echo "feedhandler needs a C compiler: apt install gcc python3-dev" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check "setuptools>=77" "Cython>=3.1,<4"
	@echo "compiling, on $(JOBS) processors: a few minutes, once"
	$(COMPILE)
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

# The compiled modules, in place; only what changed is compiled again. They come before the
# install above too, because pip would compile them one at a time.
$(VENV)/.compiled: $(VENV)/.installed setup.py feedhandler/_compiled.py $(SOURCES)
	$(COMPILE)
	@touch $@
