# Every target runs from a fresh clone; `make help` lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Folder of further dumps for the targets that can use them.
DUMPS  ?=

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(BIN)/hloipu: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

.PHONY: install
install: $(BIN)/hloipu ## editable install with the dev tools, in .venv

.PHONY: demo
demo: install ## compile a JAX training step for a GC200, run it, check its values
	$(BIN)/hloipu run hlo_samples/mnist_train_step.hlo --target gc200 --random 0
	$(BIN)/hloipu check hlo_samples/mnist_train_step.hlo --target gc200

.PHONY: test
test: install ## run the tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: test-all
test-all: install ## run all cases of all tests, the thinned ones too
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --all-cases

.PHONY: test-large
test-large: install ## the large tests, which `make test` leaves out (1 minute)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m large

.PHONY: check
check: install ## what CI runs: format, lint, types, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: public-types
public-types: install ## is every public name typed in full, for users' type checkers (1 minute)
	$(BIN)/python -m pip install --quiet --group public-types
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright --ignoreexternal --verifytypes hloipu

.PHONY: keras
keras: install ## Keras models run in every way, against Keras's own fit (5 minutes)
	$(BIN)/python -m tools.keras_models

.PHONY: report-pages
report-pages: install ## reports in Chromium: every screen looked at, driven and judged
	$(BIN)/python -m pip install --quiet --group browser
	$(BIN)/python -m tools.report_pages

.PHONY: docs
docs: install ## the documentation as a site, in out/site/html
	$(BIN)/python -m pip install --quiet --group site
	$(BIN)/python -m tools.site

.PHONY: samples
samples: install ## print hlo_samples/ anew from JAX
	$(BIN)/python -m tools.make_samples

.PHONY: grammar
grammar: install ## make the parse tables of hlo.lark anew
	$(BIN)/python -m tools.make_grammar_tables

.PHONY: corpus
corpus: install ## print thousands of modules from JAX to out/corpus (8 minutes)
	$(BIN)/python -m tools.make_corpus

.PHONY: rounding
rounding: install ## round 10^8 values to each narrow float, against ml_dtypes (5 minutes)
	$(BIN)/python -m tools.prove_rounding

.PHONY: kernels
kernels: install ## compiled kernels against numpy, bit for bit: 10^7 pairs an op (10 minutes)
	$(BIN)/python -m tools.prove_kernels

.PHONY: parse-conformance
parse-conformance: corpus ## our parser and verifier against XLA's, on all texts and the corpus
	$(BIN)/python -m tools.parse_conformance $(if $(DUMPS),--zoo $(DUMPS))

.PHONY: conformance
conformance: install ## every op's values against XLA:CPU, 6,000 modules and more (12 minutes)
	$(BIN)/python -m tools.conformance

.PHONY: tile-conformance
tile-conformance: install ## compiled programs on three machines, both modes, against XLA:CPU
	$(BIN)/python -m tools.tile_conformance $(if $(SAMPLE),--sample $(SAMPLE))
	$(BIN)/python -m tools.tile_conformance --odd 1000

.PHONY: fuzz-tiles
fuzz-tiles: install ## random programs compiled and run on tiles, against the evaluator
	$(BIN)/python -m tools.fuzz_programs --tiles --count $(N)

.PHONY: real
real: install ## samples and DUMPS compiled in every way that applies, and what they are taken for
	$(BIN)/python -m tools.real hlo_samples $(DUMPS)

SEED   ?= 0
BLOCKS ?= $(if $(filter command line,$(origin N)),$(N),1000)
.PHONY: fuzz-blocks
fuzz-blocks: install ## N blocks of networks at real sizes, from SEED on: compiled and proved
	$(BIN)/python -m tools.fuzz_blocks --cases $(BLOCKS) --seed $(SEED) --workers 2

.PHONY: zoo-table
zoo-table: install ## cycles, bytes and compile time of the samples and of DUMPS
	$(BIN)/python -m tools.zoo_table hlo_samples $(DUMPS)

.PHONY: bench-compile
bench-compile: install ## compile time against XLA:CPU's, and its growth
	$(BIN)/python -m tools.bench compile $(DUMPS)

.PHONY: bench-run
bench-run: install ## run time of both modes against XLA:CPU's, on one core and on two (40 minutes)
	$(BIN)/python -m tools.bench run --cores 1,2

.PHONY: bench-codegen
bench-codegen: install ## cycles of kernels over the machine's limits, and of plans over the best ones
	$(BIN)/python -m tools.bench codegen

.PHONY: fidelity
fidelity: install ## predicted against published measured times; writes docs/fidelity.md
	$(BIN)/python -m tools.fidelity

.PHONY: fidelity-ops
fidelity-ops: install ## classes of ops against the machine's limits and poplibs's formulas
	$(BIN)/python -m tools.fidelity.op_table

.PHONY: fidelity-models
fidelity-models: install ## whole networks: do they fit, how long do they take (an hour; OLDER=1: rows of other commits do)
	$(BIN)/python -m tools.fidelity --models

N ?= 20000
.PHONY: fuzz
fuzz: install ## N mutants of real dumps through parser, verifier and printer
	$(BIN)/python -m tools.fuzz_parser --count $(N) $(if $(DUMPS),--dumps $(DUMPS))

PROGRAMS ?= $(if $(filter command line,$(origin N)),$(N),2000)
TILES ?= 10
.PHONY: fuzz-programs
fuzz-programs: install ## N random programs against XLA:CPU
	$(BIN)/python -m tools.fuzz_programs --count $(PROGRAMS)

.PHONY: spmd-fuzz
spmd-fuzz: install ## N random sharded programs on the blocks of all devices, against one device
	$(BIN)/python -m tools.fuzz_spmd --count $(PROGRAMS)

EVERY ?= 1
.PHONY: fuzz-ops
fuzz-ops: install ## every opcode, zero sizes, all types: compiled, run, evaluated alike (30 minutes)
	$(BIN)/python -m tools.fuzz_ops --every $(EVERY)
	$(BIN)/python -m tools.fuzz_ops --every $(shell echo $$((5 * $(EVERY)))) --scale 23
	$(BIN)/python -O -m tools.fuzz_ops --every $(shell echo $$((10 * $(EVERY)))) --target gc200

.PHONY: fuzz-outfeeds
fuzz-outfeeds: install ## outfeeds of every mode in steps cut in every way, against numpy (40 minutes)
	$(BIN)/python -m tools.fuzz_outfeeds --every $(EVERY)
	$(BIN)/python -O -m tools.fuzz_outfeeds --every $(shell echo $$((7 * $(EVERY))))

FORGED ?= $(if $(filter command line,$(origin N)),$(N),10000)
.PHONY: fuzz-ipux
fuzz-ipux: install ## N forged executables: refused, or loaded and run (1 minute)
	$(BIN)/python -m tools.fuzz_ipux --count $(FORGED)

TIMES ?= 200
.PHONY: stress-streams
stress-streams: install ## every fault of host streams TIMES times on a busy processor, and a soak (25 minutes)
	$(BIN)/python -m tools.stress_streams --times $(TIMES)

.PHONY: stress-threads
stress-threads: install ## 16 threads of 200 runs of one executable, four sessions beside them
	$(BIN)/python -m tools.stress_threads

.PHONY: soak
soak: install ## 100,000 training steps through bounded queues, memory weighed (2 minutes)
	$(BIN)/python -m tools.soak

.PHONY: kill-resume
kill-resume: install ## 42 training runs of every kind killed at any moment and resumed (4 minutes)
	$(BIN)/python -m tools.kill_resume

.PHONY: prove-exchanges
prove-exchanges: install ## 5,000 tampered programs: who finds out (6 minutes)
	$(BIN)/python -m tools.prove_exchanges --programs 200 --mutants 5000

MUTANTS ?= $(if $(filter command line,$(origin N)),$(N),300)
.PHONY: mutants
mutants: install ## 300 small faults planted in the code: which do the tests find (an hour; records once)
	$(BIN)/python -m tools.mutants --count $(MUTANTS) --seed $(SEED) $(if $(ROOM),--room $(ROOM)) $(if $(ONLY),--only $(ONLY))

.PHONY: pipeline-conformance
pipeline-conformance: install ## 500 ways to cut training steps, against JAX (12 minutes)
	$(BIN)/python -m tools.pipeline_conformance

.PHONY: sharding-table
sharding-table: install ## docs/sharding-table.md anew: divided programs on 2 to 64 IPUs (1 minute)
	JAX_PLATFORMS=cpu $(BIN)/python -m tools.sharding_table --page docs/sharding-table.md

.PHONY: spmd-conformance
spmd-conformance: install ## 345 sharded JAX programs, Shardy on and off: values against JAX's, of every TILESth on tiles too (0: of none), bytes against XLA's (3 minutes)
	$(BIN)/python -m tools.spmd_conformance --tiles $(TILES)

TEXTS ?= texts
.PHONY: spmd-texts
spmd-texts: install ## texts of the folder TEXTS, such as XLA's and Shardy's tests, on all devices: values, shardings that they expect
	$(BIN)/python -m tools.spmd_texts $(TEXTS)

.PHONY: trainers
trainers: install ## 125 training steps as people write them, with libraries and without, against JAX (30 minutes)
	$(BIN)/python -m pip install --quiet --group trainers
	$(BIN)/python -m tools.trainers

.PHONY: newcomer
newcomer: install ## JAX, TensorFlow, PyTorch installed anew: docs/frontends.md, ten models each (half an hour)
	$(BIN)/python -m tools.newcomer

POINTS ?= 2000
.PHONY: sweep-study
sweep-study: install ## 2,000 points of a sweep on one worker and on two; worker, scheduler, client killed (half an hour)
	$(BIN)/python -m pip install --quiet '.[sweep]'
	$(BIN)/python -m tools.sweep_study --points $(POINTS)

.PHONY: plan-study
plan-study: install ## 200 trials of Optuna against --plan auto, on three steps (15 minutes)
	$(BIN)/python -m pip install --quiet '.[sweep]'
	$(BIN)/python -m tools.plan_study

.PHONY: machine-study
machine-study: install ## what fits with other memories and links; writes docs/machine-study.md (hours)
	$(BIN)/python -m tools.machine_study

A ?= HEAD~1
B ?= HEAD
.PHONY: referee
referee: install ## programs, costs, verdicts and values of commits A and B, bit by bit; . is the tree
	$(BIN)/python -m tools.referee $(A) $(B) $(if $(DUMPS),--dumps $(DUMPS))

.PHONY: bench
bench: bench-parse bench-ops ## all benchmarks, against XLA in the same run

.PHONY: bench-parse
bench-parse: install ## reading text, against XLA's C++ parser; start-up
	$(BIN)/python -m tools.bench parse $(if $(DUMPS),$(wildcard $(DUMPS)/*.hlo))

.PHONY: bench-ops
bench-ops: install ## kernels and whole modules, against XLA:CPU on one thread
	$(BIN)/python -m tools.bench ops

.PHONY: bench-passes
bench-passes: install ## each pass's effect on cycles and memory, one row a pass
	$(BIN)/python -m tools.bench passes $(if $(DUMPS),--dumps $(DUMPS))

.PHONY: bench-feeds
bench-feeds: install ## 10,000 training steps with feeds and without, against XLA:CPU
	$(BIN)/python -m tools.bench feeds

.PHONY: judge-check
judge-check: install ## samples and DUMPS in five types: right programs agree, planted faults are found
	$(BIN)/python -m tools.judge_check hlo_samples $(DUMPS)

.PHONY: judge-search
judge-search: install ## estimates of --plan auto against compiling, and its choices (5 minutes)
	$(BIN)/python -m tools.judge_search $(if $(DUMPS),$(wildcard $(DUMPS)/*_step.hlo $(DUMPS)/*_predict.hlo))

.PHONY: bench-scale
bench-scale: install ## time and memory of estimates of long steps on up to 64 IPUs
	$(BIN)/python -m tools.bench scale

.PHONY: demo-train
demo-train: install ## train two nets on digits in a loop on the device, against JAX
	$(BIN)/python -m pip install --quiet --group demo
	$(BIN)/python -m tools.demo_train

.PHONY: demo-pipeline
demo-pipeline: install ## a transformer that one IPU has no room for, cut over 4 and 8, against JAX
	$(BIN)/python -m tools.demo_pipeline

.PHONY: clean
clean: ## remove what the targets made
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache
