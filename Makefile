# What a developer types; `make help` lists it. The first target that needs the environment makes it
# in .venv, out of Python 3.11 or later and a C compiler, and compiles.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check
SEEDS ?= 10000
FUZZ ?= 100000000
FRAMES ?= 10000000
TIMES ?= 20
CRASHES ?= 100
KILLS ?= 2000
OPERATIONS ?= 5000
JOBS := $(shell nproc 2>/dev/null || echo 2)

# What the compiled modules are made from; the table stands in feedhandler/_compiled.py.
SOURCES := $(shell find codecs retrans replay feedhandler -type f \
	\( -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' -o -name '*.h' \)) \
	$(shell sed -n 's/^    "\(feedhandler\.[a-z_.]*\)",$$/\1/p' feedhandler/_compiled.py | tr . / | sed 's/$$/.py/')

.PHONY: help demo test coverage check format build bench bench-long leaks soak simulate simulate-journal hunt crash crash-journal fuzz fuzz-asan docs clean \
	install
.DEFAULT_GOAL := help

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.compiled ## the main job, seen: exchange, gateway, subscribers (DEMO="--seconds 60")
	@$(VENV)/bin/feedhandler demo $(DEMO)

test: $(VENV)/.compiled ## everything that must pass (TESTS=tests/unit for a part)
ifdef TESTS
	$(PY) -m pytest $(TESTS)
else
	$(PY) -m pytest -n $(JOBS) -m "not alone" tests
	$(PY) -m pytest -n 2 -m alone tests
endif

.PHONY: steady
steady: $(VENV)/.compiled ## the suite TIMES times, half of them on busy processors, to the first failure
	$(PY) -m tests.steady --runs $(TIMES)

coverage: $(VENV)/.compiled ## branches of the sans-IO cores that the tests take, in 15 minutes (CORES=retrans)
	$(PY) -m tests.core_coverage $(CORES)

# mypy runs where no folder `codecs` hides Python's own module of that name, which the types of
# numpy are made with.
check: $(VENV)/.compiled ## style, types, import directions, compose file
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@mkdir -p build/types && ln -sfn ../../feedhandler build/types/feedhandler
	cd build/types && $(CURDIR)/$(PY) -m mypy --config-file ../../pyproject.toml
	$(PY) -m pytest -q tests/unit/test_structure_imports.py tests/unit/test_structure_files.py

format: $(VENV)/.compiled ## put the sources into the house format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

build: ## compile in place (ONLY=feedhandler.codecs.scanner for a quick turn)
	@[ -e $(VENV)/.installed ] || $(MAKE) --no-print-directory install
	@FEEDHANDLER_BUILD_ONLY=$(ONLY) $(PY) setup.py -q build_ext --inplace -j $(JOBS) \
		>$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log >&2; exit 1; }

bench: $(VENV)/.compiled ## ratios against peers and ceilings, under 10 minutes
	$(PY) -m bench

bench-long: $(VENV)/.compiled ## what needs longer, an hour or more: the lab, pacing, memory, outages, brokers that fail
	$(PY) -m bench --long

leaks: $(VENV)/.compiled ## ten million sends, 10,000 connects and reconnects: memory may not grow with them
	$(PY) -m bench.leaks

soak: $(VENV)/.compiled ## an hour at 20,000 packets/s with a fault a minute: nothing may grow or get lost
	$(PY) -m bench --soak

simulate: $(VENV)/.compiled ## the simulation campaign (SEEDS=10000)
	SEEDS=$(SEEDS) FORGED=1000000 DARK=100000 BAR_SEEDS=6 SPILL_SEEDS=300 $(PY) -m pytest --timeout=0 -s tests/simulation

simulate-journal: $(VENV)/.compiled ## the queue's disk fails, decays, loses its power (OPERATIONS=5000)
	OPERATIONS=$(OPERATIONS) SAMPLES=20 TWICE=2000 VARIANTS=8 FLIPS=100000 SWEEP=1 $(PY) -m pytest \
		--timeout=0 -s tests/simulation/test_journal_power.py tests/simulation/test_journal_decay.py
	OPERATIONS=$(OPERATIONS) SAMPLES=20 FAILURES=2000 $(PY) -m pytest --timeout=0 -s \
		tests/system/test_journal_calls.py

hunt: $(VENV)/.compiled ## the random tests, with new seeds each time (TIMES=20)
	for turn in $$(seq $(TIMES)); do \
		FRESH=1 $(PY) -m pytest -q -n $(JOBS) -m random tests || exit 1; done

crash: $(VENV)/.compiled ## a gateway killed under load, again and again (CRASHES=100)
	FRESH=1 CRASHES=$(CRASHES) $(PY) -m pytest --timeout=0 -s tests/system/test_gateway_crash.py \
		tests/system/test_hothot_crash.py tests/system/test_resume_cut.py
	FRESH=1 FEEDHANDLER_KILLS=3 $(PY) -m pytest --timeout=0 -s -k killed \
		tests/unit/test_characterise_following.py tests/unit/test_characterise_lake.py tests/system/test_characterise_spark.py

crash-journal: $(VENV)/.compiled ## a queue's writer, and a gateway with a queue, killed (KILLS=2000)
	KILLS=$(KILLS) $(PY) -m pytest --timeout=0 -s tests/system/test_journal_crash.py
	KILLS=$$(($(KILLS) / 20)) $(PY) -m pytest --timeout=0 -s tests/system/test_durable_crash.py

fuzz: $(VENV)/.compiled ## the mutation campaigns (FUZZ=100000000 packets, FRAMES=10000000)
	FRESH=1 FEEDHANDLER_FUZZ=$(FUZZ) FEEDHANDLER_FUZZ_FRAMES=$(FRAMES) $(PY) -m pytest --timeout=0 -s tests/fuzz

fuzz-asan: $(VENV)/.compiled ## mutated packets under AddressSanitizer, in a copy of the tree
	$(PY) -m tests.fuzz.asan

docs: $(VENV)/.compiled ## the pages of docs/ that come from the code: counters, configuration, recovery
	$(PY) -m feedhandler.ops.reference docs

clean: ## everything that was made, the environment included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis out
	find codecs retrans replay feedhandler -type f \( -name '*.so' -o -name '*.c' \) -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for both: where the environment is missing, or what it installs changed, it is made,
# which compiles too; else only the modules that changed are compiled, in place.
$(VENV)/.compiled: pyproject.toml setup.py feedhandler/_compiled.py $(SOURCES)
	@if [ ! -e $(VENV)/.installed ] || [ pyproject.toml -nt $(VENV)/.installed ]; then \
		$(MAKE) --no-print-directory install; \
	else \
		$(MAKE) --no-print-directory build; \
	fi
	@touch $@

install: # the environment, from nothing
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "feedhandler needs Python 3.11 or later; name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || \
		{ echo "feedhandler needs a C compiler: apt install gcc python3-dev" >&2; exit 1; }
	@echo "setting up $(VENV): a few minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@printf '[build_ext]\nparallel = %s\n' $(JOBS) >$(VENV)/build.cfg
	@# What builds are made with must be there first: without cffi proton's comes out without its engine.
	@$(PIP) "setuptools>=77" "Cython>=3.1,<4" cffi
	@DIST_EXTRA_CONFIG=$(CURDIR)/$(VENV)/build.cfg $(PIP) --no-build-isolation -e '.[dev]'
	@touch $(VENV)/.installed
