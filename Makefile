# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
#
#   make demo     train the main job twice, stock and fused, side by side
#   make test     run the tests
#   make slow     run the other tests, which show more cases of the same
#   make quickstarts  run the quickstarts unchanged: here, under the stand-in for Slurm, in a container
#   make lint     what .ci/run checks besides the tests
#   make docs     build the documentation site into build/site
#   make internals  renew the tables of private members in docs/internals.md
#   make format   rewrite the sources in the project's format
#   make fuzz     fuzz the frame decoder under AddressSanitizer and UBSan (RUNS=10000000 inputs, SEED=1)
#   make fuzz-requests  fuzz the request handler likewise (SECONDS=60 SEED=1)
#   make fuzz-channels  data channels against members that lie, likewise (SECONDS=60 SEED=1)
#   make fuzz-updates   programs of elementwise updates, likewise (SECONDS=60 SEED=1)
#   make tsan     the transport under ThreadSanitizer (SECONDS=60 SEED=1); with clang++ also a check
#                 of its thread annotations
#   make random   compare random graphs with loops before and after, and random programs with stock
#                 TensorFlow (SEEDS=2000 of them, SEED=1)
#   make dynamic  all cases of the cluster tests with fuse_grouping=dynamic (the tests run some)
#   make faults   the tests of faults, and how long each took, into the table of docs/faults.md
#   make updates  the tests of updates that are cut, all on two and on three workers; and updates
#                 on servers over 40 steps and with other instructions
#   make collectives  the tests of collectives with groups of 8, more sizes and longer loops, and
#                 faults at random (SECONDS=60 SEED=1)
#   make soak     train for long with faults at random (STEPS=100000, SEED=1)
#   make two-hosts  stock and tf_fuse between two hosts, each benchmark's main row (needs root; 30 minutes)
#   make network  stock and fused on a network with delay, loss and limited bandwidth (needs root)
#   make bench    the README's benchmark
#   make large-tables   tables of 8 GB: each phase of a job (14 GB of memory; 3 minutes a
#                 model, last run on 2026-11-27; stock: ARGS="--modes stock_gather")
#   make large-workers  1 to 16 workers (4 minutes, 2026-11-27)
#   make large-counts   40 to 1,000 tables (10 minutes, 2026-11-27)
#   make wheel    build dist/*.whl, which holds a library for each minor version of TensorFlow
#                 (ARCH=aarch64 with Debian's g++-aarch64-linux-gnu)
#   make test-wheel  install that wheel beside each TensorFlow where no compiler is, and run it
#   make test-keras  the tests of Keras with each minor version of Keras 3 from 3.12
#   make sbom     list what that wheel installs, into dist/tf_fuse.cdx.json
#   make native   rebuild the library only (PY=... for an environment of your own)
#   make clean    remove everything that these commands made
#
# Each sets up what it needs in .venv (no root) and repeats only what has changed.
#   TENSORFLOW=tensorflow   the full package; by default tensorflow-cpu, which is much smaller, and
#                           tensorflow on aarch64, where there is no other
#   PYTHON=python3.12       the Python to make .venv with; the first fitting one by default
#   JOBS=5                  how many test files run at a time
#   ARGS=...                passed on: make test ARGS="-k frame", make bench ARGS="--rounds 1"

MACHINE := $(shell uname -m)
TENSORFLOW ?= $(if $(filter aarch64,$(MACHINE)),tensorflow,tensorflow-cpu)
ARCH ?= $(MACHINE)
PYTHON ?=
JOBS ?= 5
ARGS ?=
RUNS ?= 10000000
SEEDS ?= 2000
UPDATES ?= 1
STEPS ?= 100000
SECONDS ?= 60
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin

export TENSORFLOW PYTHON ARCH
# Or pytest would prepare each module of tests anew, in each process of a run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help environment native demo test slow quickstarts format fuzz fuzz-requests fuzz-channels fuzz-updates tsan
.PHONY: wheel test-wheel test-keras sbom random dynamic faults collectives updates soak network two-hosts bench clean
.PHONY: large-tables large-workers large-counts
.PHONY: docs internals lint lint-ruff lint-format lint-mypy lint-imports lint-clang-format lint-english
.PHONY: lint-includes lint-folders lint-tests
# A target that fails must not be taken for made.
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

environment:
	@.ci/environment $(VENV)

ifdef PY
native:
	$(PY) setup.py build_ext --inplace
else
native: environment
endif

demo: environment
	$(BIN)/python -u -m examples.demo $(ARGS)

# -v: each test is named, and one that takes long is told while it runs. Cluster tests wait for processes much
# of their time, so more files run than there are cores (tests/file_order.py); files, whose tests share clusters,
# are not divided.
test: environment
	$(BIN)/python -m pytest -v -n $(JOBS) --dist loadfile --durations=40 $(ARGS)

slow: environment
	$(BIN)/python -m pytest -v -n $(JOBS) --dist loadfile --durations=40 -m slow $(ARGS)

quickstarts: environment
	$(BIN)/python -m pytest -v -m '' -k unchanged tests/cluster/cli/test_launch_quickstarts.py \
	  tests/cluster/cli/test_launch_platforms.py $(ARGS)

# Targets of their own, so that --keep-going shows the findings of all.
lint: lint-ruff lint-format lint-mypy lint-imports lint-clang-format lint-english lint-includes lint-folders lint-tests

lint-ruff: environment
	$(BIN)/ruff check .

lint-format: environment
	$(BIN)/ruff format --check .

lint-mypy: environment
	$(BIN)/mypy

lint-imports: environment
	$(BIN)/lint-imports

lint-clang-format: environment
	find cc \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z | \
	  xargs -0 $(BIN)/clang-format --dry-run -Werror

lint-english: environment
	$(BIN)/python .ci/check_english.py --words --max-words 25000 README.md docs tf_fuse cc
	$(BIN)/python .ci/check_english.py .ci benchmarks examples tests setup.py \
	  CHANGELOG.md CONTRIBUTING.md SECURITY.md

lint-includes: environment
	$(BIN)/python .ci/check_includes.py

lint-folders: environment
	$(BIN)/python .ci/check_folders.py

lint-tests: environment
	$(BIN)/python .ci/check_tests.py

# Without the theme's notice of its successor.
docs: environment
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Renews the tables of docs/internals.md.
internals: environment
	$(BIN)/python -m tf_fuse._tensorflow.table docs/internals.md

format: environment
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find cc \( -name '*.h' -o -name '*.cc' \) -print0 | xargs -0 $(BIN)/clang-format -i

# The frame uses no TensorFlow header, so its programs build without the plugin. clang++ is preferred,
# since libFuzzer comes with it; that keeps what it finds useful in build/frames, and goes on from there.
fuzz: environment
	for cxx in $$CXX clang++ $(addprefix clang++-,21 20 19 18 17 16 15 14) g++ c++; do \
	  command -v $$cxx >/dev/null && break; \
	done; \
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S cc/frame -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=$$cxx
	rm -f build/fuzz/frame_fuzz  # Another compiler's may be there.
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/fuzz
	mkdir -p build/frames
	if [ -x build/fuzz/frame_fuzz ]; then \
	  cd build && fuzz/frame_fuzz -runs=$(RUNS) -seed=$(SEED) -max_len=512 -print_final_stats=1 \
	    frames ../cc/frame/corpus; \
	else \
	  build/fuzz/frame_fuzz_standalone $(RUNS) $(SEED) cc/frame/corpus/*; \
	fi

# These hold TensorFlow. The first build takes some minutes. libFuzzer keeps what it finds useful in
# build/requests, and goes on from there.
fuzz-requests: environment
	$(BIN)/python setup.py -q build_programs --sanitizer=address
	mkdir -p build/requests
	if [ -x build/address/request_fuzz ]; then \
	  cd build && address/request_fuzz -max_total_time=$(SECONDS) -seed=$(SEED) -max_len=1500 \
	    -timeout=120 -rss_limit_mb=6000 -print_final_stats=1 requests ../cc/testing/requests/corpus; \
	else \
	  cd build && address/request_fuzz_standalone $(SECONDS) $(SEED) ../cc/testing/requests/corpus/*; \
	fi

fuzz-channels: environment
	$(BIN)/python setup.py -q build_programs --sanitizer=address
	build/address/channels_test $(SECONDS) $(SEED)
	build/address/channel_fuzz $(SECONDS) $(SEED)

fuzz-updates: environment
	$(BIN)/python setup.py -q build_programs --sanitizer=address
	build/address/program_fuzz $(SECONDS) $(SEED)

tsan: environment
	$(BIN)/python setup.py -q build_programs --sanitizer=thread
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/thread/races_test $(SECONDS) $(SEED)
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/thread/channels_test $(SECONDS) $(SEED)
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/thread/busy_times_test $(SECONDS) $(SEED)

random: environment
	PYTHONPATH=. $(BIN)/python tests/unit/passes/fuse_recv/test_pipeline_random_loops.py $(SEEDS)
	PYTHONPATH=. $(BIN)/python tests/cluster/all_passes/test_gradient_programs.py servers $$(($(SEEDS) * 2 / 5)) $(SEED)
	PYTHONPATH=. $(BIN)/python tests/cluster/all_passes/test_gradient_programs.py replicas $$(($(SEEDS) / 5)) $(SEED)
	PYTHONPATH=. $(BIN)/python tests/cluster/all_passes/test_gradient_programs.py layouts $$(($(SEEDS) * 2 / 5)) $(SEED)

# All cases on clusters, fused dynamically; the tests run some.
dynamic: environment
	TF_FUSE_TEST_ALL_DYNAMIC=1 $(BIN)/python -m pytest tests/cluster/fuse_recv/test_dynamic.py $(ARGS)

collectives: environment
	TF_FUSE_TEST_COLLECTIVES=1 TF_FUSE_TEST_SECONDS=$(SECONDS) TF_FUSE_TEST_SEED=$(SEED) \
	  $(BIN)/python -m pytest -m '' tests/cluster/collectives/test_values.py \
	  tests/cluster/collectives/test_shard_values.py \
	  tests/fault/collectives/test_collective_loop.py $(ARGS)

# UPDATES=all: each optimizer with biases of every size, too: two core hours (about 64 s for each of
# 36 rows on servers, 63 s for each of 47 of replicas).
# ARGS='-k "test_every_size and Adamax"' runs some optimizers.
updates: environment
	TF_FUSE_TEST_UPDATES=$(UPDATES) $(BIN)/python -m pytest -v -m '' \
	  tests/cluster/shard_update/test_rewrite.py tests/cluster/shard_update/test_matrix.py \
	  tests/cluster/shard_update/test_matrix_in_a_process.py \
	  tests/cluster/shard_update/test_matrix_documentation.py \
	  tests/cluster/shard_update/test_every_size.py \
	  tests/cluster/shard_update/test_first_use.py \
	  tests/cluster/parameter_server/test_update_values.py \
	  tests/unit/kernels/test_elementwise_update_bits.py $(ARGS)

# In one process: what runs beside would be in the times.
faults: environment
	rm -rf build/faults
	TF_FUSE_FAULTS_JSON=build/faults $(BIN)/python -m pytest -v -m '' tests/fault $(ARGS)
	$(BIN)/python tests/fault/table.py build/faults

soak: environment
	$(BIN)/python -u tests/fault/soak/soak.py --steps $(STEPS) --seed $(SEED) \
	  --json build/soak.jsonl --plot build/soak.png $(ARGS)
	$(BIN)/python -u tests/fault/soak/replicas.py --steps $(STEPS) --json build/replicas.jsonl

two-hosts: environment
	$(BIN)/python -u benchmarks/two_hosts/run.py --json build/two_hosts.json --plot build/two_hosts.svg $(ARGS)

network: environment
	$(BIN)/python -u benchmarks/fuse_recv/network.py --json build/network.json --plot build/network.svg \
	  --markdown build/network.md $(ARGS)

bench: environment
	$(BIN)/python benchmarks/fuse_recv/run.py --workload features --features 300 --workers 1 --ps 2 \
	  --batch 64 --steps 60 --rounds 5 --json build/fuse_recv.json $(ARGS)

large-tables: environment
	for model in dlrm wide_deep; do \
	  $(BIN)/python -u benchmarks/large_tables/run.py --rows 42000000 --model $$model --modes all --steps 6 \
	    --warm-up 2 --evaluation-steps 4 --json build/large_$$model.json $(ARGS) || exit 1; \
	done

large-workers: environment
	$(BIN)/python -u benchmarks/large_tables/run.py --table workers --json build/large_workers.json $(ARGS)

large-counts: environment
	$(BIN)/python -u benchmarks/large_tables/run.py --table tables --rows 100000 \
	  --json build/large_counts.json $(ARGS)

# Makes its own environments in build/wheel.
wheel:
	@.ci/wheel

# Of an environment with the wheel and nothing else.
sbom:
	rm -rf build/sbom
	python3 -m venv build/sbom/tool
	build/sbom/tool/bin/python -m pip install --quiet "cyclonedx-bom>=7,<8"
	python3 -m venv --without-pip build/sbom/wheel
	build/sbom/tool/bin/python -m pip --python build/sbom/wheel/bin/python install --quiet \
	  "$$(ls dist/tf_fuse-*-manylinux*_$(MACHINE).whl)[cpu]"
	build/sbom/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/tf_fuse.cdx.json build/sbom/wheel
	python3 third_party/d3/build.py --list-in dist/tf_fuse.cdx.json
	ls -l dist/tf_fuse.cdx.json

test-wheel: environment
	TF_FUSE_TEST_WHEEL=1 $(BIN)/python -m pytest -v -rP tests/wheel $(ARGS)

# Environments with that Keras before the packages of .venv; no path file of those is read.
test-keras: environment
	for version in 3.12 3.13 3.14 3.15; do \
	  venv=build/keras/$$version; \
	  $(BIN)/python -m venv --without-pip --clear $$venv && \
	  $(BIN)/python -m pip --python $$venv/bin/python install --quiet --no-deps "keras==$$version.*" && \
	  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(echo $$venv/lib/python*/site-packages)/venv.pth" && \
	  $$venv/bin/python -m pytest -v tests/unit/_tensorflow tests/unit/keras tests/cluster/keras \
	    tests/fault/parameter_server/test_keras_fit_faults.py \
	    tests/fault/parameter_server/test_keras_backup_faults.py $(ARGS) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info tf_fuse/_lib tf_fuse/v1/*_pb2.py tf_fuse/v1/*_pb2.pyi \
	  tf_fuse/v1/.protos.sha256
	find .ci tf_fuse tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
