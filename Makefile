# Every target does its own set-up: .venv is made and filled when it is missing or setup.py has changed.
#   make demo       train the digits classifier on two workers and draw its loss curves
#   make test       ruff, mypy and every test, and some tests of data once more beside tensorflow-io
#   make test-fast  ruff, mypy, the unit tests and the quick integration tests
#   make test-unpatched  all integration tests without the speed-ups that patch TensorFlow and Keras, before a release
#   make gpu-checks  on a host with NVIDIA GPUs: installs CUDA's libraries in .venv, and checks tfdist on the GPUs
#   make verify     the equivalence matrix on this machine
#   make test-io    what reads data by TensorFlow, and a part of verify, with tensorflow-io and TensorFlow 2.16 in .venv-io
#   make peers KERAS=PATH TENSORFLOW=PATH  the tests of Keras and TensorFlow, from checkouts, in a scope of tfdist
#   make compat TENSORFLOW=2.18.1 [KERAS=3.15.1]  test_compat and a part of verify beside these versions; RING=1: Horovod too
#   make ecosystem  models of keras-hub, keras-rs, keras-tuner and keras.applications under every strategy, beside one device
#   make moving     the original programs of the migration pages, each with its library in runs/moving
#   make horovod    Horovod for the TensorFlow in .venv, which the tests need
#   make ops        the ops that tfdist compiles for itself
#   make sanitize   the test programs of what is written in C++, under ThreadSanitizer and AddressSanitizer
#   make check-aarch64  the same programs for aarch64 under qemu, which it needs, and a compiler for it
#   make lint       ruff and mypy
#   make goldens    the texts of what is promised and the made parts of pages, written anew after a change that is meant
#   make docs       the site, in site/
#   make package    the wheel and the source distribution, in dist/, checked as a package index checks them
#   make docker-lock  the requirements of the images, pinned and hashed anew
#   make docker-test  build the image `cpu` with buildah on a debootstrapped Debian, and run it; as root, ten minutes;
#                     TARGET=gpu the image `gpu`, whose checks need no GPU
#   make clean      remove what builds, tests and runs leave behind, and .venv
# PYTHON=/path/to/python chooses the interpreter that .venv is made with.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
STAMP := $(VENV)/.installed
IO := .venv-io
IO_STAMP := $(IO)/.installed
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
COMPAT := .venv-compat
ECOSYSTEM := .venv-ecosystem
ECOSYSTEM_STAMP := $(ECOSYSTEM)/.installed
CANDIDATES := python3.11 python3.12 python3.13 python3
IO_FEATURES := partial_batch sync_batch_norm_partial
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

export TF_CPP_MIN_LOG_LEVEL ?= 2
# images set it; then every process would compile what it imports, for 7 CPU seconds with TensorFlow and Keras
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Four processes, each with whole files, which tests/conftest.py puts in order: much of the time one waits for what it
# has started.
SHARED := -n 4 --dist loadfile --no-loadscope-reorder

# What the images have beside tfdist itself; tests/unit/test_docker_locks.py reads these lines.
IMAGE_EXTRAS := demo formats s3 gcs
GPU_EXTRAS := cuda
NOTEBOOK_EXTRAS := notebooks
TARGET := cpu
LOCK := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-header --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28
LOCK_IMAGE := $(LOCK) setup.py docker/horovod.in $(IMAGE_EXTRAS:%=--extra %)

.PHONY: help demo ops compiled sanitize check-aarch64 test test-io test-fast test-unpatched gpu-checks verify horovod peers compat ecosystem moving lint goldens docs package docker-lock docker-test clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(STAMP)
	@$(BIN)/tfdist run --strategy multi-worker -n 2 strategies/digits/train.py --output runs/demo

# Installed already: nothing; kept from another .venv: seconds; else a build of minutes.
horovod: $(STAMP)
	@$(BIN)/tfdist build horovod

# Kept already: nothing; else half a minute for the collectives, which several workers take by themselves.
ops: $(STAMP)
	@$(BIN)/tfdist build ops

# Collects the tests once, so that what they import, and their assertions, are compiled once and not by each of the
# processes that share them: 25 CPU seconds in a fresh clone. What is wrong with the files the tests say themselves.
compiled: $(STAMP)
	@$(BIN)/python -m pytest tests --collect-only -qq -p no:cacheprovider >/dev/null 2>&1 || true

# What comes before the tests waits for the network or keeps one processor busy: two of it at a time, each printed whole,
# what takes longest first.
test:
	@$(MAKE) --no-print-directory --jobs=2 $(STAMP) $(IO_STAMP)
	@echo "ruff and mypy, Horovod, the ops, a collection, and the tests with tensorflow-io, two at a time"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target horovod lint test-io compiled ops
	$(BIN)/python -m pytest tests -m "not release" $(SHARED)

# The last tensorflow-io loads under TensorFlow 2.16 alone, which is also the oldest that tfdist takes. What knows nothing of
# TensorFlow (the order, records, repair, states) is not run again; `make compat` looks at the rest of what the version changes.
test-io: $(IO_STAMP)
	$(IO)/bin/python -m pytest tests/integration/test_data_tensorflow_io.py tests/integration/test_data_sources.py \
	  tests/integration/test_data_reader.py
	@$(IO)/bin/tfdist verify --strategy mirrored-2 $(IO_FEATURES:%=--feature %)

# SUITES="trainers callbacks" runs some of them; without checkouts, the ones that Keras installs with itself.
peers: $(PEERS_STAMP)
	@$(PEERS)/bin/python -m tests.peers $(if $(KERAS),--keras "$(KERAS)") $(if $(TENSORFLOW),--tensorflow "$(TENSORFLOW)") \
	  $(SUITES:%=--suite %) --results runs/peers

# Each pair has an environment of its own, with the Python of .venv; PARTS="test_compat mirrored-2" runs some of it.
compat: $(STAMP)
	@$(BIN)/python -m tests.compat $(if $(TENSORFLOW),--tensorflow "$(TENSORFLOW)") $(if $(KERAS),--keras "$(KERAS)") \
	  $(if $(RING),--ring) $(PARTS:%=--part %)

# Cells that are right, with these versions, are kept from one run to the next. MODELS="T5 DLRM" STRATEGIES="ring-2" runs
# some; AGAIN=1 runs also what is right. `make goldens` puts the table into docs/ecosystem.md.
ecosystem: $(ECOSYSTEM_STAMP) horovod ops
	@$(ECOSYSTEM)/bin/python -m ecosystem $(MODELS:%=--model %) $(STRATEGIES:%=--strategy %) $(if $(AGAIN),--again)

# Each program has its own environment under runs/moving, 9 GB in all; PAGES="accelerate tff" runs some.
moving: $(STAMP)
	@$(BIN)/python -m tests.programs_before $(PAGES:%=--page %)

test-fast: lint horovod ops
	$(BIN)/python -m pytest tests -m "quick and not thorough" $(SHARED)

# test_cheap_traces.py is left out: it tests the speed-ups themselves.
test-unpatched: horovod ops
	TESTS_UNPATCHED=1 $(BIN)/python -m pytest tests/integration --ignore tests/integration/test_cheap_traces.py $(SHARED)

# One card is split in two, several are taken whole. What it prints can be pasted into an issue.
gpu-checks: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[cuda]'
	-$(BIN)/tfdist doctor
	$(BIN)/python -m pytest tests/gpu/device_checks.py -v -p no:cacheprovider -p no:xdist

verify: horovod ops
	@$(BIN)/tfdist verify

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The test programs of the native collectives, codecs and stamps, which need no TensorFlow; each is the files of a folder. A sanitizer finds what it
# finds while a program runs. Codecs have no threads of their own, and functions in several versions, as they have, end a program
# under ThreadSanitizer before it begins.
SANITIZERS := thread address,undefined
CORE := $(filter-out %/ops.cc %/cancellation.cc,$(wildcard tfdist/native/collectives/*.cc))
CODECS := $(filter-out %/ops.cc,$(wildcard tfdist/native/codecs/*.cc))
STAMPS_CORE := $(filter-out %/ops.cc,$(wildcard tfdist/native/stamps/*.cc))
DRIVER := -shared -fPIC -O1 tests/native/device_stamps/driver.c
CHECKS := -std=c++17 -pthread -Wall -Wextra -Werror
sanitize:
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; for kind in $(SANITIZERS); do \
	  flags="$(CHECKS) -O1 -g -fno-omit-frame-pointer -fsanitize=$$kind -fno-sanitize-recover=undefined"; \
	  echo "shared memory, $$kind"; \
	  $(CXX) $$flags tests/native/shared_memory/*.cc $(CORE) -o "$$folder/check"; \
	  for part in threads hosts restart waits; do "$$folder/check" $$part; done; \
	  echo "TCP, $$kind"; \
	  $(CXX) $$flags tests/native/tcp/*.cc $(CORE) -o "$$folder/check"; \
	  "$$folder/check" pure orders strangers failures algorithms; \
	  echo "replicas of one process, $$kind"; \
	  $(CXX) $$flags tests/native/replicas/*.cc $(CORE) -o "$$folder/check"; \
	  "$$folder/check"; \
	  echo "stamps, $$kind"; \
	  $(CXX) $$flags -DTFDIST_PORTABLE_CODECS tests/native/stamps/*.cc $(STAMPS_CORE) -o "$$folder/check"; \
	  "$$folder/check"; \
	  echo "stamps of devices, $$kind"; \
	  $(CC) $(DRIVER) -o "$$folder/libcuda.so"; \
	  $(CXX) $$flags tests/native/device_stamps/main.cc -ldl -o "$$folder/check"; \
	  "$$folder/check" "$$folder/libcuda.so"; \
	done; \
	echo "codecs, address,undefined"; \
	$(CXX) $$flags -ffp-contract=off tests/native/codecs/*.cc $(CODECS) -o "$$folder/check"; \
	"$$folder/check"

# The same programs for aarch64, emulated. The emulator translates to this machine's instructions: where it is an x86, whose memory
# order is the stronger one, a barrier that is missing may go unnoticed. What it does show is that nothing depends on the
# instructions, the alignment or the numbers of system calls of x86.
AARCH64 := aarch64-linux-gnu-g++
EMULATOR := qemu-aarch64-static
check-aarch64:
	@for program in $(AARCH64) $(EMULATOR); do command -v $$program >/dev/null || { \
	  echo "$$program is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2; exit 1; }; done
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(AARCH64) $(CHECKS) -O2 -static tests/native/shared_memory/*.cc $(CORE) -o "$$folder/shared_memory"; \
	$(AARCH64) $(CHECKS) -O2 -static tests/native/tcp/*.cc $(CORE) -o "$$folder/tcp"; \
	for part in "threads 1" "hosts 1" "processes 1" "kill 8" "restart 1" waits; do \
	  echo "aarch64, shared memory: $$part"; $(EMULATOR) "$$folder/shared_memory" $$part; done; \
	echo "aarch64, TCP"; $(EMULATOR) "$$folder/tcp" pure orders strangers failures; \
	$(AARCH64) $(CHECKS) -O3 -ffp-contract=off -static tests/native/codecs/*.cc $(CODECS) -o "$$folder/codecs"; \
	echo "aarch64, codecs"; $(EMULATOR) "$$folder/codecs"; \
	$(AARCH64) $(CHECKS) -O3 -static tests/native/stamps/*.cc $(STAMPS_CORE) -o "$$folder/stamps"; \
	echo "aarch64, stamps"; $(EMULATOR) "$$folder/stamps"

goldens: $(STAMP)
	@$(BIN)/python -m tests.goldens

# A link that leads nowhere is an error; with --quiet it would not be. The variable silences an advertisement.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(STAMP)
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m build --outdir dist packaging/horovod
	$(BIN)/python -m twine check --strict dist/*

docker-lock: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8,<0.14"
	$(LOCK) docker/build.in -o docker/requirements-build.txt
	$(LOCK_IMAGE) -o docker/requirements-cpu.txt
	$(LOCK_IMAGE) $(GPU_EXTRAS:%=--extra %) -c docker/requirements-cpu.txt -o docker/requirements-gpu.txt
	$(LOCK_IMAGE) $(NOTEBOOK_EXTRAS:%=--extra %) docker/notebook.in -c docker/requirements-cpu.txt \
	  -o docker/requirements-notebook.txt

docker-test: $(STAMP)
	$(BIN)/python docker/check_image.py --target $(TARGET)

clean:
	rm -rf $(VENV) $(IO) $(PEERS) $(COMPAT) $(ECOSYSTEM) runs build dist *.egg-info packaging/horovod/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted install is done again. A .venv without a working pip is a half-made one.
$(MADE): setup.py packaging/horovod/pyproject.toml
	@set -e; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python="$(PYTHON)"; \
	  if [ -z "$$python" ]; then \
	    for candidate in $(CANDIDATES); do \
	      if "$$candidate" -c '$(SUPPORTED)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	    done; \
	  fi; \
	  if [ -z "$$python" ]; then \
	    echo "No Python 3.11, 3.12 or 3.13 was found on PATH (looked for: $(CANDIDATES))." >&2; \
	    echo "Name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c '$(SUPPORTED)'; then \
	    echo "$$python is $$("$$python" --version 2>&1 || echo 'not a Python'); tfdist needs Python 3.11, 3.12 or 3.13." >&2; \
	    echo "Name another: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "$$python cannot make a virtual environment: its modules venv and ensurepip are missing." >&2; \
	    echo "Install them (on Debian and Ubuntu the package python3-venv), or name another Python:" >&2; \
	    echo "  make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv $(VENV); \
	fi; \
	touch $(MADE)

# Modules are compiled when they are imported: that is one of four, and compiling all takes as long as unpacking them.
$(STAMP): $(MADE)
	@echo "Installing tfdist into $(VENV) (the first time about two minutes and 2 GB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[demo,test]" --editable packaging/horovod
	@touch $(STAMP)

$(IO_STAMP): $(MADE)
	@if ! $(IO)/bin/python -m pip --version >/dev/null 2>&1; then $(BIN)/python -m venv --clear $(IO); fi
	@echo "Installing tfdist with tensorflow-io and TensorFlow 2.16 into $(IO) (likewise)"
	@$(IO)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[io,test]"
	@touch $(IO_STAMP)

$(PEERS_STAMP): $(MADE)
	@if ! $(PEERS)/bin/python -m pip --version >/dev/null 2>&1; then $(BIN)/python -m venv --clear $(PEERS); fi
	@echo "Installing tfdist with what the tests of Keras import into $(PEERS) (likewise)"
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[peers]"
	@touch $(PEERS_STAMP)

# It has what .venv has, from there, and the packages beside it.
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
$(ECOSYSTEM_STAMP): $(STAMP) ecosystem/requirements.txt
	@if ! $(ECOSYSTEM)/bin/python -m pip --version >/dev/null 2>&1; then $(BIN)/python -m venv --clear $(ECOSYSTEM); fi
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" >"$$($(ECOSYSTEM)/bin/python $(PURELIB))/venv.pth"
	@echo "Installing packages of Keras' ecosystem into $(ECOSYSTEM)"
	@$(ECOSYSTEM)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r ecosystem/requirements.txt
	@touch $(ECOSYSTEM_STAMP)
