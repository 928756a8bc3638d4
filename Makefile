# `make help` lists the targets. Nearly every one installs .venv first. What follows ## on the line of a
# target is its line in that list.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyTorch's index of CPU wheels, for machines whose own pip index has none.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# Its advertisement for another tool is switched off. With --quiet it would count no warning, and
# so refuse no broken link.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
EXTRA := $(shell test -e /proc/driver/nvidia/version && echo gpu || echo cpu)

BY_DAY := $(patsubst %,--ignore tests/buffer/stress/test_%.py,crowd fuzz random_lives_served soak)
# One more than the cores of a small machine: tests wait for a third of their time.
IN_THREE := -n 3 --dist loadfile --no-loadscope-reorder
# Set in some containers: every process that a test starts would compile all of r3l again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test help unit system nightly check types site pages collected format docs badge lock clean
.PHONY: results fuzz-gateway lab-test soak soak-actors chaos interruptions week rehearsal test-envs test-agents test-extras test-clusters bench-learner bench-gpu bench-weights bench-actors bench-buffer bench-math bench-peers

# runs/demo, or with the time in its name if that is there. R³L as in the paper, but retries read the
# advice alone, as the built-in policy was taught (launch/presets/demo.yaml).
demo: $(VENV)/.installed  ## train the built-in policy on two CPU cores, in a few minutes
	$(BIN)/r3l-launch --run demo$$(test -e runs/demo && date +-%Y%m%d-%H%M%S)

# Three processes, a file of tests at a time; the files with real processes first. build/tests.xml
# is the outcome of a run that reached its end (0: all passed, 1: some failed).
test: $(VENV)/.installed  ## all tests but the nightly ones, with real vLLM and DeepSpeed processes
	@rm -f build/tests.xml
	$(BIN)/python -m pytest tests -m "not nightly" $(BY_DAY) $(IN_THREE) --durations=30 --junitxml=build/tests.part.xml; \
	ended=$$?; test $$ended -gt 1 || mv build/tests.part.xml build/tests.xml; exit $$ended

# In the order of this file, the two for newcomers first.
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

unit: $(VENV)/.installed  ## the tests without real processes
	$(BIN)/python -m pytest tests -m "not system and not nightly" $(BY_DAY) $(IN_THREE)

system: $(VENV)/.installed  ## the tests with real processes
	$(BIN)/python -m pytest tests -m "system and not nightly" $(BY_DAY)

# What takes longer: the buffer under stress, the research programs, every library and cluster, an
# hour and more. Needs root and Linux.
nightly: $(VENV)/.installed  ## what takes longer: stress, research programs, every library and cluster; needs root
	$(BIN)/python -m pytest tests/buffer/stress
	$(BIN)/python -m pytest tests -m nightly $(BY_DAY)
	$(BIN)/python -m pytest tests -m "not system and not nightly" $(BY_DAY) $(IN_THREE) --hypothesis-profile=random
	$(MAKE) lab-test soak soak-actors chaos test-envs test-agents test-extras test-clusters

# Two parts at a time. `make check test` runs the tests of `pages` once, with all others, and imports
# them beside the check of types: three processes at once would each compile all that they import.
check: $(VENV)/.installed  ## formatting, lint, types, architecture, the pages and the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	+@$(MAKE) --no-print-directory --jobs=2 --output-sync types site $(if $(filter test,$(MAKECMDGOALS)),collected,pages)

types:  ## types alone
	$(BIN)/mypy r3l buffer envs actors learner launch benchmarks lab

site:  ## the documentation site in build/site
	$(SITE)

pages:  ## the tests of architecture and pages
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_lab.py tests/docs

collected:  ## import every test, without running it
	@out=$$($(BIN)/python -m pytest tests -m "not nightly" $(BY_DAY) --collect-only 2>&1) || { echo "$$out"; exit 1; }

format: $(VENV)/.installed  ## format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages that come from the code, then the site in build/site, without any network. A name that
# the code no longer has needs its line in docs/removed.txt.
docs: $(VENV)/.installed  ## write the pages that come from the code, then the site
	$(BIN)/python -m benchmarks.inventory
	$(BIN)/python -m benchmarks.configuration_page > docs/configuration.md
	$(BIN)/python -m learner.metrics.tags > docs/metrics.md
	$(SITE)

badge: $(VENV)/.installed  ## draw docs/badge.svg, the outcome of the last make test
	$(BIN)/python -m benchmarks.badge

# Kills, power losses, hostile messages and flipped bits by the hundreds and thousands; half an hour.
soak: $(VENV)/.installed  ## kill, power off and flip bits by the hundreds; half an hour
	R3L_SOAK=1 $(BIN)/python -m pytest -s -o timeout=1200 tests/buffer/stress
	R3L_SOAK=1 $(BIN)/python -m pytest -s -o timeout=1200 tests/r3l/files tests/r3l/run/files tests/r3l/weights tests/learner/test_checkpoint.py tests/learner/test_loop.py tests/buffer/wire tests/buffer/storage tests/buffer/groups tests/actors/weights -k "flipped or damaged_message or random_moments or random_schedules or bad_link"

soak-actors: $(VENV)/.installed  ## kill actors for ten minutes
	R3L_SOAK_MINUTES=10 $(BIN)/python -m pytest -s tests/system/test_actor_soak.py tests/system/test_continued.py

# Every part of a run is killed and stopped, its disk filled, its link cut; needs root. CHAOS='--minutes 10 --seed 1'
chaos: $(VENV)/.installed  ## kill and stop every part of a run, fill its disk, cut its link; needs root
	$(BIN)/python -m benchmarks.chaos $(CHAOS)

# Ctrl-C, SIGTERM and lost terminals in steps of a minute; half an hour. INTERRUPTIONS='--turns 20 --seed 0'
interruptions: $(VENV)/.installed  ## Ctrl-C, SIGTERM and lost terminals in long steps; half an hour
	$(BIN)/python -m benchmarks.interruptions $(INTERRUPTIONS)

# 10,000 tiny steps, and what every process takes meanwhile; about an hour. Stop and start it at any time. WEEK='--steps 100000 --polite'
week: $(VENV)/.installed  ## 10,000 tiny steps, and what every process takes; about an hour
	$(BIN)/python -m benchmarks.week $(WEEK)

# 10,000 hostile requests to the gateway next to an honest agent; minutes. FUZZ='--requests 100000 --seed 1'
fuzz-gateway: $(VENV)/.installed  ## 10,000 hostile requests to the gateway; minutes
	$(BIN)/python -m benchmarks.gateway_fuzz $(FUZZ)

# Tests with the environments' real libraries, slow ones too. ScienceWorld needs Java; WebShop's site
# is upstream's if R3L_WEBSHOP names a checkout of princeton-nlp/WebShop.
test-envs: $(VENV)/.installed  ## tests with the environments' real libraries
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[$(EXTRA),dev,scienceworld,alfworld,webshop,textworld,gym]"
	R3L_FULL=1 $(BIN)/python -m pytest tests/envs lab/tests/scienceworld -rs

# Agents that other people wrote, verifiers, OpenEnv's servers and Harbor, each in an interpreter of its
# own. Harbor needs Python 3.12; where there is none, its tests are skipped.
test-agents: $(VENV)/.installed  ## tests with agents of ten other packages, verifiers, OpenEnv and Harbor
	test -x build/agents/bin/python || $(PYTHON) -m venv build/agents
	build/agents/bin/pip install --quiet --requirement examples/agents/requirements.txt
	test -x build/agents-2/bin/python || $(PYTHON) -m venv build/agents-2
	build/agents-2/bin/pip install --quiet --requirement examples/agents/requirements-2.txt
	test -x build/openenv/bin/python || $(PYTHON) -m venv build/openenv
	build/openenv/bin/pip install --quiet "openenv>=0.10"
	test -x build/verifiers/bin/python || $(PYTHON) -m venv build/verifiers
	build/verifiers/bin/pip install --quiet verifiers uv
	echo $(CURDIR)/tests/envs/agents/tasksets > $$(build/verifiers/bin/python -c 'import site; print(site.getsitepackages()[0])')/r3l_tests.pth
	test -x build/harbor/bin/python || ! python3.12 --version || python3.12 -m venv build/harbor
	! test -x build/harbor/bin/python || build/harbor/bin/pip install --quiet harbor
	! test -x build/harbor/bin/python || echo $(CURDIR)/tests/envs/agents/task_folders > $$(build/harbor/bin/python -c 'import site; print(site.getsitepackages()[0])')/r3l_tests.pth
	$(BIN)/python -m pytest tests/actors/agents tests/actors/gateway tests/envs/agents tests/envs/adapters/openenv -rs

# Offline.
test-extras: $(VENV)/.installed  ## loggers with their real packages
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[$(EXTRA),dev,wandb,mlflow,trackio]"
	$(BIN)/python -m pytest tests/learner/metrics -rs

# A run on a real Ray cluster of four nodes, two of which are lost, then one on a real SLURM cluster
# of two (as root, with Debian's slurm-wlm and munge); both on this machine.
test-clusters: $(VENV)/.installed  ## a run on a real Ray and a real SLURM cluster, on this machine; needs root
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[$(EXTRA),dev,ray]"
	rm -rf build/ray-run build/slurm-run
	$(BIN)/python -m tests.system.ray_cluster build/ray-run
	bash tests/system/slurm_cluster.sh build/slurm-run --actors 2 --steps 4 eval.tasks=0

# The plan of a host of 8 GPUs on this machine: 16 actors with engines that guess, 8 ranks on CPUs.
rehearsal: $(VENV)/.installed  ## the plan of a host of 8 GPUs, on CPUs
	$(BIN)/python -m pytest -s tests/system/test_rehearsal.py

# Slow ones too.
lab-test: $(VENV)/.installed  ## tests of the research programs
	$(BIN)/python -m pytest lab/tests $(IN_THREE)

# Hours. Stop and start it at any time: runs that have ended are kept. RESULTS='--only e1 --seeds 1'
results: $(VENV)/.installed  ## make the missing runs and the results pages; hours
	$(BIN)/python -m lab.results $(RESULTS)
ifndef RESULTS
	$(BIN)/python -m lab.results.gradients
	$(BIN)/python -m lab.results.stopped_runs
	$(BIN)/python -m lab.results.wall_clock
	$(BIN)/python -m lab.results --page
	$(BIN)/python -m lab.where_it_pays
	$(BIN)/python -m lab.report
endif

# Waiting threads sleep, as in a run: on cores that others use too, spinning costs ten times as much.
bench-learner: $(VENV)/.installed  ## measure the learner
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.learner

bench-weights: $(VENV)/.installed  ## measure the transfer of weights
	$(BIN)/python -m benchmarks.weights

# Needs a GPU, nothing that compiles, and no vLLM; nine minutes at most. BENCH_GPU='--tiny' tries it on a CPU.
bench-gpu: $(VENV)/.installed  ## measure the learner on a GPU; nine minutes at most
	$(BIN)/python -m benchmarks.gpu $(BENCH_GPU)

bench-actors: $(VENV)/.installed  ## measure actors and their engine
	$(BIN)/python -m benchmarks.actors

# The whole table; redis-server (Debian) and the Python packages redis and torchrl join it if they
# are installed. `python -m benchmarks.buffer --help` lists load, peers and scale.
bench-buffer: $(VENV)/.installed  ## measure the buffer
	$(BIN)/python -m benchmarks.buffer throughput

# Next to TRL, which it installs in build/peers. PEERS='--sizes 1,12,60'
bench-peers: $(VENV)/.installed  ## measure a step beside one of TRL
	$(BIN)/python -m benchmarks.peers $(PEERS)

# Needs files of problems: make bench-math MATH_FILES='gsm8k_test.jsonl math500.jsonl'
bench-math: $(VENV)/.installed  ## compare graders of mathematics on files of problems
	@test -n "$(MATH_FILES)" || { echo "name files of problems: make bench-math MATH_FILES='gsm8k_test.jsonl'"; exit 2; }
	$(BIN)/python -m benchmarks.math_answers verdicts $(MATH_FILES)
	$(BIN)/python -m benchmarks.math_answers mutations $(MATH_FILES)

# Writes requirements/*.txt anew from setup.cfg. UPGRADE=--upgrade takes newer versions.
lock:  ## write requirements/*.txt anew from setup.cfg
	test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/pip install --quiet uv; }
	UV="$(CURDIR)/build/uv/bin/uv" UPGRADE="$(UPGRADE)" requirements/lock.sh

clean:  ## remove .venv, build and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

# Every package comes by its version and its hashes from requirements/ (requirements/lock.sh), except
# torch's CPU build where pip has no index with it; then PyTorch's index is trusted. A module is
# compiled when it is first imported: most of these packages' 27,000 modules never are.
PIP := $(BIN)/pip install --quiet --no-deps --no-compile
LOCKED := $(PIP) --no-build-isolation --require-hashes -r
$(VENV)/.installed: setup.cfg pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"r3l needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/build.txt
ifeq ($(EXTRA),cpu)
	$(LOCKED) requirements/torch-cpu.txt || $(PIP) "torch==2.13.0+cpu" --index-url "$(TORCH_CPU_INDEX)"
endif
	$(LOCKED) requirements/$(EXTRA).txt
	DS_BUILD_OPS=0 $(LOCKED) requirements/deepspeed.txt
	$(PIP) --no-build-isolation --editable .
	touch $@
