# Every command a contributor needs. `make` alone prints this list.
# One virtual environment (.venv) and one cargo target folder (target/), both ignored by git.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
SEEDS ?= 200
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

PYTHON_SOURCES := python tests docs benches examples proto deploy
RUST_SOURCES := $(shell find rust proto -name '*.rs' -o -name 'Cargo.toml' -o -name '*.proto') Cargo.toml Cargo.lock

.PHONY: help setup setup-deploy setup-engine check-engine test-ray test-kube test-gpu sanitize-gpu bench-layouts bench-gpu bench-ranks bench-allocation bench-populate build run test sim check check-deep check-rust check-python check-docs docs soak fuzz bench check-proto proto proto-image router-go-proto fix clean

help: ## Print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(BIN)/.ready ## Make .venv with every tool, pinned by constraints.txt
$(BIN)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing tools into $(VENV)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev click rich grpcio googleapis-common-protos
	@touch $@

build: $(BIN)/.built ## Build the native module into .venv
$(BIN)/.built: $(BIN)/.ready $(RUST_SOURCES)
	@echo 'building the native module (minutes the first time)'
	@mkdir -p target && PIP_QUIET=1 $(BIN)/maturin develop --release >target/maturin.log 2>&1 || { cat target/maturin.log >&2; exit 1; }
	@touch $@

run: build ## Set up, serve a node, drive it with a sample trace; until Ctrl-C or RUN_SECONDS
	@$(BIN)/python examples/run.py

# A test spends most of its time waiting, for a service of its own or for time to pass: four at once keep two cores busy,
# and take two fifths of the time of one after the other. Tests of a file stay in one process, which makes what they share once.
TEST_WORKERS ?= 4
PYTEST = $(BIN)/pytest -q -n $(TEST_WORKERS) --dist loadfile

test: build ## Set up, then run every test this machine can run, TEST_WORKERS at once
	cargo test --quiet --workspace
	$(PYTEST)

check: check-rust check-python check-proto check-docs test ## Format, lint and test; CI adds check-engine

check-rust: $(BIN)/.ready
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --log-level error check; else echo 'cargo-deny is not installed: licences and advisories are not checked'; fi

check-python: build
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --allowlist tests/house/stubtest-allowlist.txt --ignore-unused-allowlist hisparse_svc._core

check-docs: build
	$(BIN)/python docs/generate --check

docs: build ## Write the generated parts of README.md and docs/
	$(BIN)/python docs/generate

setup-deploy: ## Install Prometheus and a kustomize, for the tests of deploy/ (as root; they skip without)
	deploy/install-tools

setup-engine: $(BIN)/.engine ## Add torch, cuda-core and transformers, 5 GB, for the data plane and its tests
$(BIN)/.engine: $(BIN)/.ready pyproject.toml constraints.txt
	@echo 'installing torch and its CUDA libraries into $(VENV) (5 GB, minutes)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group engine
	@touch $@

# What skips where there is no torch, or sees more where there is.
ENGINE_TESTS := tests/kernels tests/decode tests/engine tests/integrations tests/cli/test_bench.py tests/unit/test_docstrings_run.py tests/unit/test_engine_pages.py
check-engine: build setup-engine ## Type and test the data plane on the CPU, with torch: the other half of CI
	$(BIN)/mypy
	$(PYTEST) $(ENGINE_TESTS)

target/ray/.ready: $(BIN)/.ready pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target target/ray -c constraints.txt 'ray[serve]==2.60.*'
	@touch $@

test-ray: build target/ray/.ready ## Test the router beside real Ray Serve, which goes into a folder of its own
	PYTHONPATH=$(CURDIR)/target/ray:$(CURDIR)/python $(BIN)/pytest -q tests/ray_serve

test-kube: build ## Test manifests and directories on a real kube-apiserver, built from its Go module (minutes the first time; needs Go)
	tests/kube/server/build target/kube
	$(BIN)/pytest -q tests/kube

# A GPU machine may have torch elsewhere and no cargo: ENGINE_PYTHON names its python, and the native module is carried.
ENGINE_PYTHON ?= $(BIN)/python
# With pytest-xdist there, GPU_TEST_WORKERS=8 takes a minute where one process takes many; pytest-benchmark warns beside it.
test-gpu: ## Run the tests that need a CUDA device
	PYTHONPATH=python $(ENGINE_PYTHON) -m pytest -q -m gpu $(if $(GPU_TEST_WORKERS),-n $(GPU_TEST_WORKERS) -p no:benchmark) tests/kernels tests/decode tests/engine tests/integrations

sanitize-gpu: ## Run every kernel once under compute-sanitizer: races in shared memory, then accesses (CUDA toolkit, minutes)
	PYTHONPATH=python:. compute-sanitizer --tool racecheck --error-exitcode 1 $(ENGINE_PYTHON) tests/kernels/one_of_each.py barriers
	PYTHONPATH=python:. compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 $(ENGINE_PYTHON) tests/kernels/one_of_each.py accesses

bench-layouts: ## Let the allocator lay pages out anew, for bench-gpu: a pool at most 90 % taken, and one always full
	cargo run --quiet -p hisparse-core --example page_layout -- 131072 90 > python/hisparse_svc/data/layouts/churned_90.json
	cargo run --quiet -p hisparse-core --example page_layout -- 131072 100 > python/hisparse_svc/data/layouts/churned_full.json

bench-gpu: ## Measure swap-in on this machine's GPU, with the pages as the allocator left them
	PYTHONPATH=python $(ENGINE_PYTHON) benches/swap_in.py

RANKS_POOL ?= 64GiB
bench-ranks: ## Measure all GPUs of this machine at once on one pool of RANKS_POOL
	PYTHONPATH=python $(ENGINE_PYTHON) benches/ranks.py --pool $(RANKS_POOL) --out benches/results/ranks.json

FUZZ_SECONDS ?= 60
fuzz: ## Fuzz each target for FUZZ_SECONDS: bytes as calls, as messages of the attach socket, as a layout and as a journal; operations on the ledger (nightly toolchain)
	fuzz/run $(FUZZ_SECONDS)

soak: build ## Half an hour of callers that come, go and are killed: memory and descriptors must stay flat
	cargo build --quiet --release -p hisparse-serve --example load
	$(BIN)/python benches/soak.py --out benches/results/soak.json

# A real-time priority keeps other processes out of a measurement, where this user may have one.
REALTIME = $(shell chrt -f 10 true 2>/dev/null && echo chrt -f 10)
TRACE ?=
bench-allocation: ## Measure the allocator and the prefix index under churn; TRACE names Mooncake's conversation_trace.jsonl
	cargo bench --quiet --no-run -p hisparse-core --bench allocation
	$(REALTIME) cargo bench --quiet -p hisparse-core --bench allocation -- $(abspath $(TRACE)) $(CURDIR)/benches/results/allocation.json >/dev/null

bench-populate: ## Measure how fast pages are made; root sets huge pages aside for the while, others measure what there is
	REALTIME="$(REALTIME)" benches/populate 2 7 >benches/results/populate.json

bench: build ## Measure, and keep the results under benches/results/
	$(BIN)/python benches/planner.py
	cargo build --quiet --release -p hisparse-serve --example load
	$(BIN)/python benches/serve_load.py --out benches/results/serve_load.json
	$(BIN)/python benches/serve_load.py --overload --out benches/results/overload.json
	$(BIN)/python benches/client.py --out benches/results/client.json
	$(BIN)/python benches/fleet_decision.py --out benches/results/fleet_decision.json

check-proto: $(BIN)/.ready
	cd proto && buf lint
	cd proto && buf breaking --against hisparse.binpb
	@cd proto && buf build --exclude-source-info -o - | cmp -s - hisparse.binpb || { echo 'proto/ changed: run `make proto-image`' >&2; exit 1; }

proto: $(BIN)/.ready ## Make the Python code of proto/ anew
	$(BIN)/python proto/generate.py

# The Go example's code, committed so that it builds without them; the plugins come from the Go proxy.
router-go-proto: $(BIN)/.ready ## Make the Go code of examples/router-go anew
	mkdir -p target/go-bin
	GOBIN=$(CURDIR)/target/go-bin go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.10
	GOBIN=$(CURDIR)/target/go-bin go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
	cd proto && PATH=$(CURDIR)/target/go-bin:$(PATH) buf generate --template ../examples/router-go/buf.gen.yaml -o ../examples/router-go $(foreach file,types capacity admission,--path hisparse/v1/$(file).proto)

proto-image: $(BIN)/.ready ## Accept the state of proto/ as what later changes must not break
	cd proto && buf build --exclude-source-info -o hisparse.binpb

sim: ## Simulate SEEDS runs of a node under faults, or one SEED; OUT keeps the result
	@cargo run --quiet -p hisparse-sim -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(OUT),--out $(OUT) --date $$(date +%F))

check-deep: ## Slow checks: 10,000 simulated runs, 200 histories of a killed service, 100,000 Admits racing for the last seats, 200,000 orders of each model of what threads do to each other, 1,000 killed engines and services, bad peers, 50 minutes of fuzzing, 100,000 re-granted pages, 10,000 decode steps of churn (with torch), 512 steps behind 8,000 tokens (with transformers); the memory crate under Miri and the address sanitizer (nightly toolchain with miri)
	$(MAKE) --no-print-directory sim SEEDS=10000
	HISPARSE_HISTORIES=200 cargo test --quiet -p hisparse-sim --test service
	HISPARSE_RACE_ADMITS=100000 cargo test --quiet -p hisparse-serve --test serve four_routers
	HISPARSE_MODEL_RUNS=200000 cargo test --quiet --release -p hisparse-serve --lib model::
	HISPARSE_KILLS=1000 cargo test --quiet -p hisparse-serve --test serve a_killed
	HISPARSE_BAD_PEERS=1 HISPARSE_REQUEST_IDS=1000000 cargo test --quiet --release -p hisparse-serve --test bad_peers
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600
	HISPARSE_REGRANTED_PAGES=100000 cargo test --quiet -p hisparse-serve --test serve zero_in_every_byte
	HISPARSE_DECODE_STEPS=10000 $(BIN)/pytest -q --timeout 3600 tests/decode/test_churn.py
	HISPARSE_TRANSFORMERS_LONG=1 $(BIN)/pytest -q --timeout 3600 tests/integrations
	RUSTC_ICE=0 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation" \
		cargo +nightly miri test --quiet --target-dir target/miri -p hisparse-mem
	RUSTFLAGS=-Zsanitizer=address cargo +nightly test --quiet --target $$(rustc +nightly -vV | sed -n 's/^host: //p') \
		--target-dir target/asan -p hisparse-mem

fix: $(BIN)/.ready ## Format everything and apply safe lint fixes
	cargo fmt --all
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)

clean: ## Remove build outputs and the virtual environment
	rm -rf $(VENV) target .mypy_cache .ruff_cache .pytest_cache
