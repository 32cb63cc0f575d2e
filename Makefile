# Entry points for people and CI. `make` without a target lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo try test integration matrix quick torture sanitize check bench setup setup-build

# The tests of these binaries, which `test` names one by one, mostly wait, so more of them run at the same time than there are cores. The last
# two need a real broker. All others are fast and run first. `make integration` runs those that need more programs.
TESTS  := $(basename $(notdir $(wildcard tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs)))
SLOW   := mock_broker broker torture
FAST   := $(filter-out $(SLOW) integration,$(TESTS))
THREADS := 6
TEST    := cargo test --workspace --features failpoints

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup-build ## run dedupd on an embedded broker: duplicates in, an audit at the end
	@echo 'Building dedupd; the first build takes some minutes. Then the demo runs for 20 s, with a status page, and audits its output.'
	cargo run --release -- demo

try: ## the promise on a real Apache Kafka: duplicates in, two kills, an audit at the end (installs Java and Kafka)
	@scripts/setup kafka
	cargo build --release
	dir=$$(mktemp -d); trap 'scripts/kafka-broker stop --dir "$$dir" >/dev/null; rm -rf "$$dir"' EXIT; \
		scripts/kafka-broker start --port 19092 --dir "$$dir"; \
		cargo run --release --quiet -- try --bootstrap-servers 127.0.0.1:19092

test: setup check ## all tests of CI: check, fast tests, tests on a broker
	$(TEST) --no-run --lib --bins $(addprefix --test ,$(FAST) $(SLOW))
	@# Tests that wait most of the time run beside others, in a process group of their own. Their output is shown if one fails.
	set -m; beside() { local log=target/$$1.log; $(TEST) --test $$1 -- --test-threads=$(THREADS) >$$log 2>&1 & other=$$!; \
			"$${@:2}"; if wait $$other; then grep '^test result' $$log; else cat $$log; return 1; fi; }; \
		trap 'kill -- -$${other:-} 2>/dev/null || true' EXIT; \
		beside mock_broker $(TEST) --lib --bins $(addprefix --test ,$(FAST)); \
		$(TEST) --doc; \
		beside torture $(TEST) --test broker -- --test-threads=$(THREADS)

integration: setup ## tests with other systems: schema registry, OIDC provider, KDC, MirrorMaker 2, Debezium, containers, Helm (downloads 580 MB)
	@scripts/setup integration
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo test --workspace --all-features --test integration -- --test-threads=2

matrix: setup ## broker tests on five versions of Apache Kafka; scripts/matrix takes other versions
	scripts/matrix

quick: setup-build ## formatting, clippy, unit tests, tidy, a short simulation; for a small change
	cargo fmt --all --check
	cargo clippy --workspace --features failpoints --lib --bins -- -D warnings
	DEDUPD_SIM_SEEDS=1000 $(TEST) --lib --test tidy --test readme --test formats --test block --test simulation

torture: setup ## random kills and freezes; ROUNDS= DURATION= SEED= and more, see docs/reliability.md
	TORTURE=1 cargo test --release --test torture -- --nocapture

# RUSTC_BOOTSTRAP allows the option of the unstable compiler in the stable one.
sanitize: export RUSTC_BOOTSTRAP := 1
sanitize: export RUSTFLAGS := -Zsanitizer=address
sanitize: export CFLAGS := -fsanitize=address -fno-omit-frame-pointer -g -O1
sanitize: export LDFLAGS := -fsanitize=address
sanitize: export ASAN_OPTIONS := detect_leaks=0
sanitize: setup ## tests on a broker with an address sanitizer in dedupd and the Kafka client; ONLY= names some of them
	cargo test --workspace --features failpoints --target-dir target/sanitize --target $$(rustc -vV | sed -n 's/^host: //p') \
		--test mock_broker --test broker -- --test-threads=2 $(ONLY)

check: setup-build ## formatting, clippy (tests; release build without failpoints) and rustdoc; warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --lib --bins -- -D warnings
	cargo clippy --workspace --all-targets --features failpoints -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --features failpoints --document-private-items

bench: setup ## measure the figures in docs/benches.md
	cargo bench --benches

setup: ## install what is missing for all tests: compilers, Java, Kafka jars, Chromium, Prometheus
	@scripts/setup

setup-build: ## install only missing compilers and libraries, enough for demo, quick and check
	@scripts/setup build
