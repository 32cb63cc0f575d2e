# What people and CI type. `make` alone lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-kafka test quick torture check bench setup

# A test file that names the broker harness needs a broker; all others are fast and run first.
TESTS  := $(basename $(notdir $(wildcard tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs)))
BROKER := $(basename $(notdir $(shell grep -lE 'support::|mod support;' tests/*.rs)))
FAST   := $(filter-out $(BROKER),$(TESTS))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## the whole thing on an embedded broker: duplicates in, an audit at the end
	cargo run --release -- demo

demo-kafka: setup ## the same on a real Apache Kafka, with kill -9 on the way
	cargo build --release
	scripts/demo-kafka

test: setup check ## everything CI runs: check, fast tests, tests on a real broker
	cargo test --all-features --lib --bins $(addprefix --test ,$(FAST))
	cargo test --all-features --doc
	$(if $(BROKER),cargo test --all-features $(addprefix --test ,$(BROKER)))

quick: setup ## after a small change: formatting, clippy, unit tests, tidy, a short simulation
	cargo fmt --check
	cargo clippy --all-features --lib --bins -- -D warnings
	DEDUPD_SIM_SEEDS=1000 cargo test --all-features --lib --test tidy --test readme --test simulation

torture: setup ## long random kills and freezes; ROUNDS= DURATION= SEED= and more, see docs/reliability.md
	TORTURE=1 cargo test --release --test torture -- --nocapture

check: ## formatting, clippy and docs, warnings are errors
	cargo fmt --check
	cargo clippy --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --all-features --document-private-items

bench: setup ## the figures in docs/benches.md
	cargo bench --benches

setup: ## install what is missing (system packages, Kafka jars)
	@scripts/setup
