# What is done often in this project. `just` lists it; CONTRIBUTING.md says more.

set shell := ["bash", "-euo", "pipefail", "-c"]

# The programs of `.ci/tools` come first, so that the versions are those of CI.
export PATH := justfile_directory() / "target/tools/bin" + ":" + env("PATH")

# List the recipes
[private]
default:
    @just --list --unsorted

# Start a broker with a Postgres of its own
[group("run")]
dev *ARGS:
    cargo run -- dev {{ ARGS }}

# Measure throughput and latency (`just bench cycle --seconds 10`)
[group("run")]
bench *ARGS:
    cargo run --release --package howdah-cli -- bench {{ ARGS }}

# Build the program with link-time optimisation, into target/dist: slower to build, faster to run
[group("run")]
dist:
    cargo build --profile dist --package howdah-cli --features archive

# Build the program as it is published, into target/dist: twice, and the second time by what the first one did at work
[group("run")]
published:
    deploy/build

# Everything that CI checks before the tests; `just fmt` and `just fix` repair some of it
[group("check")]
check: fmt-check clippy clippy-without-tls proto deny shell doc book

# Run what CI runs for each change, or some steps of it (`just ci checks`)
[group("check")]
ci *STEPS:
    .ci/run {{ STEPS }}

# Run everything: hours. `.ci/run` lists the steps
[group("check")]
full:
    .ci/run full

# Format the Rust code
[group("check")]
fmt:
    cargo fmt --all
    cargo fmt --manifest-path fuzz/Cargo.toml

# Is the Rust code formatted?
[group("check")]
fmt-check:
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check

# Lint the Rust code
[group("check")]
clippy *ARGS:
    cargo clippy --workspace --features archive --all-targets {{ ARGS }} -- -D warnings

# Lint the Rust client without TLS
[group("check")]
clippy-without-tls:
    cargo clippy --package howdah-client --no-default-features --all-targets -- -D warnings

# Apply what Clippy can repair by itself
[group("check")]
fix:
    cargo clippy --workspace --features archive --all-targets --fix --allow-dirty --allow-staged

# Lint the protocol, and compare it with that of the last release
[group("check")]
proto: tools && breaking
    buf lint
    buf build -o /dev/null

# Does the protocol still serve the clients of the last release?
[group("check")]
breaking: tools
    .ci/breaking

# Check the licences, versions and sources of dependencies, and look for known vulnerabilities
[group("check")]
deny: tools && advisories
    cargo deny --locked check --hide-inclusion-graph licenses bans sources

# Look for known vulnerabilities of dependencies
[group("check")]
advisories: tools
    .ci/advisories

# Check the shell scripts
[group("check")]
shell: tools
    shellcheck --external-sources $(git ls-files -co --exclude-standard '.ci/*' '*.sh' 'deploy/*/build' 'deploy/debian/p*' deploy/build deploy/release | grep -v '\.txt$')

# Run the tests of the whole workspace, with the archive; a name, or a part of one, selects some (`just test faults::`)
[group("test")]
test *ARGS:
    cargo test --workspace --features archive {{ ARGS }}

# Run the tests of the whole system alone, most of which need Postgres
[group("test")]
system *ARGS:
    cargo test --features archive --test system {{ ARGS }}

# Run the tests of the whole system on Postgres 18
[group("test")]
system-18 *ARGS:
    .ci/with-postgres-18 cargo test --features archive --test system {{ ARGS }}

# Run the tests of the whole system with two stores behind each broker
[group("test")]
system-stores *ARGS:
    HOWDAH_TEST_STORES=2 cargo test --features archive --test system {{ ARGS }}

# Package the Rust client, install it from that package into an empty project, and run the programs of its README there
[group("test")]
client-rust:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} client/rust/test.sh

# Check and test the Go client
[group("test")]
client-go *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} client/go/test.sh {{ ARGS }}
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} .ci/stubs go

# Build, check and test the TypeScript client
[group("test")]
client-typescript *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} client/typescript/test.sh {{ ARGS }}
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} .ci/stubs typescript

# Make each alert fire and rest, with promtool
[group("test")]
alerts:
    deploy/prometheus/test.sh

# Install and start each package on a bare Debian, as root: of a program that is built, or of target/dist/howdah
[group("test")]
packages *PROGRAM:
    deploy/test.sh {{ PROGRAM }}

# Send spans to a real OpenTelemetry Collector, and compare the trees that it gets: of a program that is built, or of target/dist/howdah
[group("test")]
collector *PROGRAM:
    deploy/collector/test.sh {{ PROGRAM }}

# Apply the manifests to a real Kubernetes of one node, which is built first: of a program that is built, or of target/dist/howdah
[group("test")]
kubernetes *PROGRAM:
    deploy/kubernetes/test.sh {{ PROGRAM }}

# Fuzz what reads bytes from outside, each target for so many seconds (`just fuzz 600 schedules dsn`)
[group("test")]
fuzz SECONDS="60" *TARGETS:
    .ci/fuzz {{ SECONDS }} {{ TARGETS }}

# Run an input of a fuzz target once more
[group("test")]
fuzz-again TARGET FILE:
    .ci/fuzz again {{ TARGET }} {{ FILE }}

# Try the page for operators in a real browser (`just browser --pictures` writes docs/page)
[group("test")]
browser *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} tests/browser/run.sh {{ ARGS }}

# Hold the clients to the conformance suite, all or some (`just conformance go python`)
[group("test")]
conformance *LANGUAGES:
    .ci/conformance {{ LANGUAGES }}

# Check the model of leases at its large sizes: minutes
[group("test")]
model *ARGS:
    cargo run --release -p howdah-model -- --size large {{ ARGS }}

# Test all clients, and the example in every pair of languages
[group("test")]
clients: client-rust client-python client-typescript client-go client-java thumbnails

# Run the thumbnails of the examples: the producer of each language with the worker of each
[group("test")]
thumbnails *LANGUAGES:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} examples/thumbnails/every-pair {{ LANGUAGES }}

# Build, check and test the Python client, with each major version of protobuf
[group("test")]
client-python *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} client/python/test.sh {{ ARGS }}
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} .ci/stubs python

# Build, check and test the Java client, and use its package from an empty project
[group("test")]
client-java *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} client/java/test.sh {{ ARGS }}
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} .ci/stubs java

# Generate code of the protocol with buf as docs/reference/stubs.md says, and use it, for all languages or some
[group("test")]
stubs *LANGUAGES: tools
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} .ci/stubs {{ LANGUAGES }}

# Build what the tests need, without running them
[group("test")]
build-tests:
    cargo test --workspace --features archive --no-run
    cargo build --workspace --features archive --bins

# Run the endurance tests: an hour; a group takes less (`just endurance network`, `just endurance ha`)
[group("test")]
endurance GROUP="":
    cargo test --features archive --test system -- --ignored --test-threads 1 --nocapture {{ "endurance::" + GROUP }}

# Run each workload of the benchmark to its end: minutes
[group("test")]
measurements:
    cargo test --features archive --test system -- --ignored --test-threads 1 bench::

# Build the book and the API documentation
[group("docs")]
docs: book doc

# Build the documentation as a book, into target/book
[group("docs")]
book: tools
    .ci/book

# Build the documentation of the Rust API, into target/doc
[group("docs")]
doc *ARGS:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --features archive --no-deps {{ ARGS }}

# Write the tables of docs/reference anew, from the definitions in the code
[group("docs")]
reference:
    HOWDAH_REFERENCE=write cargo test --features archive -p howdah-cli --lib --quiet reference::

# Show the book in a browser, and build it again at each change
[group("docs")]
read: tools
    mdbook serve --open --dest-dir target/book

# Install the programs that the checks call, under target/tools
[group("workshop")]
tools:
    @.ci/tools

# Measure what each crate costs to build: minutes. The report is target/timings/cargo-timings/cargo-timing.html
[group("workshop")]
timings:
    rm -rf target/timings
    cargo build --timings --target-dir target/timings
