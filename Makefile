# `make` or `make help` lists the targets. The first one that needs it sets up a virtual environment in $(VENV).
VENV ?= .venv
PYTHON ?= python3

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/peers
ENGINES := $(VENV)/engines
ONLY ?= *
EXT ?= $(if $(wildcard src/eagle3ref/kernels/_native_cuda.*so),cuda,cpu)
NVCC ?= nvcc
CUDA_OBJECTS ?= build/cuda

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup native cuda-compiles demo test test-slow test-peers test-engines test-servers lint types guard clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create the virtual environment ($VENV, made with $PYTHON), or bring it up to date

# The stamp goes first and comes back last, so an interrupted set-up is done again.
$(STAMP): pyproject.toml setup.py constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 10) and \
	  "setting up $(VENV): found Python " + v + " as $(PYTHON); expected 3.10 or newer. Run make PYTHON=python3.11, say.")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[all]'
	@touch $@

native: $(STAMP) ## build the C++ twins of csrc/ (EXT=cuda builds the CUDA ones too)
	EAGLE3REF_EXT=$(EXT) $(BIN)/python setup.py --quiet build_ext --inplace

# Once built, the tests keep it up to date; a stale one would not be loaded.
NATIVE := $(wildcard src/eagle3ref/kernels/_native.*so)
$(NATIVE): setup.py $(wildcard csrc/*.* csrc/*/*.*) | $(STAMP)
	EAGLE3REF_EXT=$(EXT) $(BIN)/python setup.py --quiet build_ext --inplace --force

# Compiled, not linked: that takes a CUDA build of torch, which EXT=cuda asks for.
CUDA_FLAGS = -arch=sm_90 -std=c++17 -O3 --fmad=false -DUSE_CUDA -DTORCH_TARGET_VERSION=0x020b000000000000 \
  $(shell $(BIN)/python -c 'from torch.utils import cpp_extension; print(*("-isystem " + p for p in cpp_extension.include_paths()))')
cuda-compiles: ## compile the CUDA twins for Hopper; needs nvcc, but no GPU
	@mkdir -p $(CUDA_OBJECTS)
	$(NVCC) $(CUDA_FLAGS) -c csrc/cuda/kernels.cu -o $(CUDA_OBJECTS)/kernels.o
	$(NVCC) $(CUDA_FLAGS) -c csrc/cuda/ops.cpp -o $(CUDA_OBJECTS)/ops.o

demo: $(STAMP) ## reproduce the whole story on the embedded nano models
	$(BIN)/eagle3ref demo

test: $(STAMP) $(NATIVE) ## run the tests, without the slow ones
	$(BIN)/python -m pytest

# pytest exits with 5 when nothing was selected, which is no failure here.
test-slow: $(STAMP) $(NATIVE) ## run the slow tests
	$(BIN)/python -m pytest -m slow || test $$? -eq 5

test-peers: $(STAMP) $(PEERS)/.installed ## compare with speculators 0.9.0 and transformers, in an environment of their own
	EAGLE3REF_TEST_PEERS=$(abspath $(PEERS)/bin/python) $(BIN)/python -m pytest -m peers

# speculators asks for torchvision and torchaudio, which nothing here uses, and whose builds must match torch's.
$(PEERS)/.installed: tests/peers/requirements.txt | $(STAMP)
	@rm -f $@
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --requirement tests/peers/requirements.txt
	$(PEERS)/bin/python -m pip uninstall --yes torchvision torchaudio
	@touch $@

# RECORD=--record writes what they did to tests/golden/engines.
test-engines: $(STAMP) ## run the real SGLang and vLLM on this CPU, each in its own environment (ONLY='vllm/*' for some)
	cd tests && $(abspath $(BIN)/python) -m engines --environments $(abspath $(ENGINES)) --only '$(ONLY)' $(RECORD)

test-servers: $(STAMP) ## start their HTTP servers, right and wrong: crosscheck, diagnose, and the readers of their dumps
	EAGLE3REF_TEST_ENGINES=$(abspath $(ENGINES)) $(BIN)/python -m pytest -m engine tests/test_servers_live.py tests/test_dumps_sglang_live.py

lint: $(STAMP) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## check types
	$(BIN)/mypy

guard: $(STAMP) ## fail if the fast ways have become slower against a frozen loop
	$(BIN)/python benchmarks/guard.py

clean: ## remove what builds, tests and checks leave, but not the virtual environment
	rm -rf build dist src/*.egg-info src/eagle3ref/kernels/_native*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
