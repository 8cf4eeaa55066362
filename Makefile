# Menura. `make` alone lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON := .venv/bin/python
# Who forbids Python to keep what it has compiled makes each process start take three times the CPU.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?=
CORES := $(shell nproc)
# Tests wait for servers as much as they compute: two for each core keep it busy (DECISIONS 211).
WORKERS ?= $(shell expr 2 \* $(CORES))
# Those without servers compute, and each worker collects all tests (DECISIONS 319).
QUICK_WORKERS ?= $(shell expr $(CORES) + 1)
# Markers of the tests that `make check` leaves to `make test`; pyproject.toml says what they mean.
UNCHECKED := needs_setup or long or kill or history or slow
# On a database's host it runs by itself, with no package of Menura.
UPDATER := deployment/agent_package/root/usr/lib/menura-agent

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: setup
setup: ## the environment, servers and jars that demo and test need
	@.ci/setup environment $(or $(SOURCE),mariadb) jars uplot

.PHONY: demo
demo: setup ## a shop database, live changes, and the lake following them (SOURCE=postgresql; KEEP=1 leaves it running)
	@$(PYTHON) -m tests.demo $(if $(SOURCE),--source $(SOURCE)) $(if $(KEEP),--keep) $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

.PHONY: check
check: ## lint, examples, and the tests that need no server, no Spark and no browser, but for slow ones: two minutes
	@.ci/setup environment
	@$(MAKE) --no-print-directory -j2 lint quick

.PHONY: quick
quick: ## the tests of check alone (SLOW=1: with those of tests/slow_tests.txt)
	@.ci/setup environment
	@$(PYTHON) -m pytest -q -n $(QUICK_WORKERS) --dist loadfile -m 'not ($(UNCHECKED))$(if $(SLOW), or slow)' $(PYTEST_ARGS)

.PHONY: test
test: ## all tests, on real servers (PYTEST_ARGS="-k word" for some; CHECKED=1: those that `make check` does not run; IN_TURN=word: of the slow ones those whose turn it is)
	@.ci/setup environment mariadb mariadb-11.8 mysql postgresql postgresql-releases jars s3proxy kafka registry opensearch chromium prometheus oidc-provider axe uplot systemd nfpm agent-host
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --durations=40 $(if $(CHECKED),-m '$(UNCHECKED)') $(if $(IN_TURN),--in-turn $(IN_TURN)) $(PYTEST_ARGS)

.PHONY: mutants
mutants: ## lakes that something has changed, found at the right key by verifications (SEEDS=1000)
	@.ci/setup environment
	@$(PYTHON) -m tests.spark_sink.mutants --seeds $(or $(SEEDS),1000)

.PHONY: fuzz
fuzz: ## hostile bytes for the compiled core, on from the last run (EVENTS=10000000 in all, SEED=1)
	@.ci/setup environment
	@$(PYTHON) -m tests.fuzz --events $(or $(EVENTS),10000000) --seed $(or $(SEED),1)

.PHONY: churn
churn: ## a source changed in every way under kills, and its lake compared (SEEDS=1 SECONDS=60 SERVER="mariadb mysql postgresql" INGREDIENTS=)
	@.ci/setup environment $(if $(findstring postgresql,$(SERVER)),postgresql postgresql-releases) mariadb mariadb-11.8 mysql jars
	@$(PYTHON) -m tests.churn --seeds $(or $(SEEDS),1) --seconds $(or $(SECONDS),60) --rate $(or $(RATE),1000) \
		$(if $(SERVER),--servers $(SERVER)) $(if $(INGREDIENTS),--ingredients $(INGREDIENTS))

.PHONY: conversions
conversions: ## columns altered from type to type on five servers, and their lake compared (SEED=1 TABLES=56 ROUNDS=9 SERVER=; PAIRS=all: every pair of types too)
	@.ci/setup environment mariadb mariadb-11.8 mysql jars
	@$(PYTHON) -m tests.conversions --seed $(or $(SEED),1) --tables $(or $(TABLES),56) --rounds $(or $(ROUNDS),9) \
		$(if $(SERVER),--servers $(SERVER))
	@$(if $(PAIRS),MENURA_CONVERSIONS=$(PAIRS) MENURA_CONVERSIONS_SEED=$(or $(SEED),1) \
		$(PYTHON) -m pytest -q -s tests/agent/ddl/test_conversions.py)

.PHONY: lint
lint: ## ruff, strict types, import directions, Cython lint, shell syntax
	@.ci/setup environment
	@.venv/bin/ruff check --quiet && .venv/bin/ruff format --check --quiet
	@.venv/bin/mypy
	@MYPYPATH=$(UPDATER) .venv/bin/mypy $(UPDATER)/upgrade.py
	@.venv/bin/lint-imports --config pyproject.toml > build/imports.log || { cat build/imports.log; exit 1; }
	@PATH="$(CURDIR)/.venv/bin:$$PATH" cython-lint agent/columnar agent/sources/*/native proto/menura
	@bash -n .ci/setup && bash -n .ci/run
	@echo "lint: clean"

.PHONY: docs
docs: ## the documentation's site, into build/docs, with references made from the code
	@.ci/setup environment
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict

.PHONY: types
types: ## strict types alone
	@.ci/setup environment
	@.venv/bin/mypy

.PHONY: format
format: ## rewrite Python files in the project's form
	@.venv/bin/ruff check --fix --quiet && .venv/bin/ruff format --quiet

.PHONY: bench
bench: ## CPU and rows/s of the agent beside its peers, into build/bench.json (CASES="bulk single update dump")
	@.ci/setup environment mysql
	@$(PYTHON) -m tests.bench $(CASES)

.PHONY: bench-postgresql
bench-postgresql: ## the same for a PostgreSQL source, into build/bench-postgresql.json (CASES="bulk single update dump")
	@.ci/setup environment postgresql
	@$(PYTHON) -m tests.bench.postgresql $(CASES)

.PHONY: bench-fleet
bench-fleet: ## a gateway with thousands of agents and millions of tables, into build/bench-fleet.json (AGENTS=2000 TABLES=1000 LARGEST=50000)
	@.ci/setup environment postgresql
	@$(PYTHON) -m tests.bench.fleet --agents $(or $(AGENTS),2000) --tables $(or $(TABLES),1000) --largest $(or $(LARGEST),50000)

.PHONY: bench-hostile
bench-hostile: ## how long another tenant's heartbeat and commit take beside a thousand hostile streams, by attack, into build/bench-hostile.json (ATTACKS="errors reports" SECONDS=20)
	@.ci/setup environment
	@$(PYTHON) -m tests.bench.hostile $(ATTACKS) --seconds $(or $(SECONDS),20)

.PHONY: bench-lake
bench-lake: ## CPU of the lake's batches beside Delta's own MERGE, into build/bench-lake.json (CASES="updates inserts tables changes wide dumped" ROWS=2000000 MANY_ROWS= CHANGES=100000 CHANGE_ROWS=2000000)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.bench.lake $(CASES) --rows $(or $(ROWS),2000000) --many-rows $(or $(MANY_ROWS),0) \
		--changes $(or $(CHANGES),100000) --change-rows $(or $(CHANGE_ROWS),2000000)

.PHONY: bench-neighbours
bench-neighbours: ## how long small tables wait for a table of which much lands, with a share of a batch and without, into build/bench-neighbours.json (CUTS=20 ROWS=50000)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.bench.neighbours --cuts $(or $(CUTS),20) --rows $(or $(ROWS),50000)

.PHONY: bench-merges
bench-merges: ## how long small tables wait while many changes of a large one are merged, beside batches and with one, into build/bench-merges.json (ROWS=2000000 CHANGES=200000)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.bench.merges --rows $(or $(ROWS),2000000) --changes $(or $(CHANGES),200000)

.PHONY: soak-lake
soak-lake: ## thousands of batches through a sink without a source, and what grows meanwhile, into build/soak-lake.json (BATCHES=50000 EVERY=1000 SPARK=1)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.soak --batches $(or $(BATCHES),50000) --every $(or $(EVERY),1000) $(if $(SPARK),--spark)

.PHONY: bench-verify
bench-verify: ## CPU of a verification at the agent and in the sink, into build/bench-verify.json (ROWS=2000000)
	@.ci/setup environment mysql
	@$(PYTHON) -m tests.bench.verify --rows $(or $(ROWS),2000000)

.PHONY: views
views: ## generated views under random changes, against Spark SQL after each batch (VIEWS=200 BATCHES=50 FIRST=1; STORES=no: tables are scanned; DIVIDED=yes: whole turns are divided)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.spark_sink.views_against_spark --views $(or $(VIEWS),200) --batches $(or $(BATCHES),50) --first $(or $(FIRST),1) $(if $(filter no,$(STORES)),--without-stores) $(if $(filter yes,$(DIVIDED)),--divided)

.PHONY: view-queries
view-queries: ## random queries of views on a schedule over odd values, compiled and by Spark SQL (QUERIES=1000 FIRST=1)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.spark_sink.query_differences --queries $(or $(QUERIES),1000) --first $(or $(FIRST),1)

.PHONY: bench-views
bench-views: ## CPU of 10,000 changes in a view of ROWS x ROWS, beside Spark SQL, into build/bench-views.json (ROWS=1000000)
	@.ci/setup environment jars
	@$(PYTHON) -m tests.bench.views --rows $(or $(ROWS),1000000)

.PHONY: bench-divided-views
bench-divided-views: ## CPU and time that one task takes to build a view of ROWS x ROWS, and two, into build/bench-divided-views.json (ROWS=2000000)
	@.ci/setup environment
	@$(PYTHON) -m tests.bench.divided_views --rows $(or $(ROWS),2000000)

.PHONY: bench-search
bench-search: ## CPU, memory and disk of a search index of ROWS rows, beside SQLite's FTS5, into build/bench-search.json (ROWS=1000000)
	@.ci/setup environment
	@$(PYTHON) -m tests.bench.search --rows $(or $(ROWS),1000000)

.PHONY: bench-export
bench-export: ## CPU of CHANGES changes on their way out of the lake, in JSON and in Avro, beside fastavro, into build/bench-export.json (CHANGES=50000)
	@.ci/setup environment
	@$(PYTHON) -m tests.bench.export --changes $(or $(CHANGES),50000)

.PHONY: dist
dist: ## sdist and wheel, into dist/
	@.ci/setup environment uplot
	@[ -s controlplane_api/api/dashboard/uplot.js ] || { echo "dist: the dashboard would draw no plots, and nothing was built:" \
		"controlplane_api/api/dashboard/uplot.js is missing. Install npm, with which .ci/setup uplot fetches it." >&2; exit 1; }
	@rm -rf dist && $(PYTHON) -m build --no-isolation > build/dist.log 2>&1 || { cat build/dist.log; exit 1; }

.PHONY: packages
packages: ## the agent as deb, rpm and archive, with SHA256SUMS, into dist/ (PYTHONS="python3.11 python3.12": those that are installed; SIGNING_KEY=FILE: sign them)
	@.ci/setup environment nfpm
	@$(PYTHON) -m deployment.agent_package $(foreach python,$(PYTHONS),--python $(python)) --nfpm .servers/nfpm/nfpm \
		--uv "$$(PATH="$(CURDIR)/.venv/uv/bin:$$PATH" command -v uv)" $(if $(SIGNING_KEY),--signing-key "$(SIGNING_KEY)")

.PHONY: first-row
first-row: ## the agent's package on a host of its own, up to its first row in the lake: the seconds of each step, into build/first-row.json
	@.ci/setup environment mariadb jars systemd nfpm agent-host
	@$(PYTHON) -m pytest -q tests/install/test_first_row.py
	@cat build/first-row.json

.PHONY: lock
lock: ## resolve requirements.lock anew
	@PATH="$(CURDIR)/.venv/uv/bin:$$PATH" uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras --group dev \
		--python-version 3.11 pyproject.toml --output-file requirements.lock

.PHONY: clean
clean: ## remove what was built, not what was fetched
	@rm -rf build dist *.egg-info agent/columnar/*.c agent/columnar/*.so agent/sources/*/native/*.c agent/sources/*/native/*.so proto/menura/*.c proto/menura/*.so proto/menura/v1/*_pb2*.py* .venv/built
