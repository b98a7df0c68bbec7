# Common tasks of this project. `just` lists them; see CONTRIBUTING.md.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Prefers the programs of `.ci/tools`, to use the same versions as CI.
export PATH := justfile_directory() / "target/tools/bin" + ":" + env("PATH")

# List the recipes
[private]
default:
    @just --list --unsorted

# Start a broker with a temporary Postgres
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

# Build the published program with profile-guided optimization, into target/dist: builds twice
[group("run")]
published:
    deploy/build

# Run all checks that CI runs before the tests; `just fmt` and `just fix` repair some findings
[group("check")]
check: fmt-check prose clippy clippy-without-tls proto deny shell doc book

# Run the CI steps for each change, or some of them (`just ci checks`)
[group("check")]
ci *STEPS:
    .ci/run {{ STEPS }}

# Run all CI steps, which takes hours; `.ci/run` lists them
[group("check")]
full:
    .ci/run full

# Format the Rust code
[group("check")]
fmt:
    cargo fmt --all
    cargo fmt --manifest-path tests/fuzz/Cargo.toml

# Check the formatting of the Rust code
[group("check")]
fmt-check:
    cargo fmt --all --check
    cargo fmt --manifest-path tests/fuzz/Cargo.toml --check

# Check comments, docs and messages for constructions that are hard to read
[group("check")]
prose:
    .ci/prose.py

# Lint the Rust code
[group("check")]
clippy *ARGS:
    cargo clippy --workspace --features archive --all-targets {{ ARGS }} -- -D warnings

# Lint the Rust client without TLS
[group("check")]
clippy-without-tls:
    cargo clippy --package howdah-client --no-default-features --all-targets -- -D warnings

# Apply Clippy's automatic fixes
[group("check")]
fix:
    cargo clippy --workspace --features archive --all-targets --fix --allow-dirty --allow-staged

# Lint the protocol, and compare it with the last release
[group("check")]
proto: tools && breaking
    buf lint
    buf build -o /dev/null

# Check that the protocol still serves clients of the last release
[group("check")]
breaking: tools
    .ci/breaking

# Check licences, versions and sources of dependencies, and known vulnerabilities
[group("check")]
deny: tools && advisories
    cargo deny --locked check --hide-inclusion-graph licenses bans sources

# Check dependencies for known vulnerabilities
[group("check")]
advisories: tools
    .ci/advisories

# Check the shell scripts
[group("check")]
shell: tools
    shellcheck --external-sources $(git ls-files -co --exclude-standard '.ci/*' '*.sh' 'deploy/*/build' 'deploy/debian/p*' deploy/build deploy/release | grep -Ev '\.(py|txt)$')

# Run the tests of the whole workspace, with the archive; a name or a part of one selects some (`just test faults::`)
[group("test")]
test *ARGS:
    cargo test --workspace --features archive {{ ARGS }}

# Run only the system tests, most of which need Postgres
[group("test")]
system *ARGS:
    cargo test --features archive --test system {{ ARGS }}

# Run the system tests on Postgres 18
[group("test")]
system-18 *ARGS:
    .ci/with-postgres-18 cargo test --features archive --test system {{ ARGS }}

# Run the system tests with two stores behind each broker
[group("test")]
system-stores *ARGS:
    HOWDAH_TEST_STORES=2 cargo test --features archive --test system {{ ARGS }}

# Package the Rust client, install the package into an empty project, and run the programs of its README there
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

# Make each alert fire and resolve, with promtool
[group("test")]
alerts:
    deploy/prometheus/test.sh

# Install and start each package on a bare Debian, as root, with a built program or target/dist/howdah
[group("test")]
packages *PROGRAM:
    deploy/test.sh {{ PROGRAM }}

# Send spans to a real OpenTelemetry Collector and check the received trees, with a built program or target/dist/howdah
[group("test")]
collector *PROGRAM:
    deploy/collector/test.sh {{ PROGRAM }}

# Build a single-node Kubernetes and apply the manifests to it, with a built program or target/dist/howdah
[group("test")]
kubernetes *PROGRAM:
    deploy/kubernetes/test.sh {{ PROGRAM }}

# Fuzz the parsers of external input, each target for this time (`just fuzz 600 schedules dsn`)
[group("test")]
fuzz SECONDS="60" *TARGETS:
    .ci/fuzz {{ SECONDS }} {{ TARGETS }}

# Run an input of a fuzz target again
[group("test")]
fuzz-again TARGET FILE:
    .ci/fuzz again {{ TARGET }} {{ FILE }}

# Test the operator page in a real browser (`just browser --pictures` writes docs/page)
[group("test")]
browser *ARGS:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} tests/system/browser/run.sh {{ ARGS }}

# Run the conformance suite with all clients, or some (`just conformance go python`)
[group("test")]
conformance *LANGUAGES:
    .ci/conformance {{ LANGUAGES }}

# Test each client directly and through nginx, HAProxy and Envoy, if they are installed: minutes
[group("test")]
proxies *ARGS:
    .ci/proxies {{ ARGS }}

# Run twenty operations under each condition of the database (docs/operate/conditions.md): minutes
[group("test")]
conditions *ARGS:
    HOWDAH_TESTS=full cargo test --features archive --test system -- conditions:: {{ ARGS }}

# Check the lease model at its large sizes: minutes
[group("test")]
model *ARGS:
    cargo run --release -p howdah-model -- --size large {{ ARGS }}

# Test all clients and the examples
[group("test")]
clients: client-rust client-python client-typescript client-go client-java thumbnails shop

# Run the thumbnails example: the producer of each language with the worker of each
[group("test")]
thumbnails *LANGUAGES:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} examples/thumbnails/every-pair {{ LANGUAGES }}

# Test the shop example: a web app and its jobs in each language
[group("test")]
shop *LANGUAGES:
    HOWDAH_BIN=${HOWDAH_BIN:-{{ justfile_directory() }}/target/debug/howdah} examples/shop/test.sh {{ LANGUAGES }}

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

# Generate protocol code with buf as docs/reference/stubs.md shows, and use it, for all languages or some
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

# Run each benchmark workload to its end: minutes
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

# Regenerate the tables of docs/reference, the page on conditions and the options of the clients from the definitions in the code
[group("docs")]
reference:
    HOWDAH_REFERENCE=write cargo test -p howdah-core --test clients --quiet
    HOWDAH_REFERENCE=write cargo test --features archive -p howdah-cli -p howdah-server --lib --quiet reference
    HOWDAH_REFERENCE=write cargo test --features archive --test system --quiet conditions::the_page

# Show the book in a browser, and rebuild it at each change
[group("docs")]
read: tools
    mdbook serve --open --dest-dir target/book

# Install the programs of the checks, below target/tools
[group("workshop")]
tools:
    @.ci/tools

# Measure the build time of each crate: minutes. The report is target/timings/cargo-timings/cargo-timing.html
[group("workshop")]
timings:
    rm -rf target/timings
    cargo build --timings --target-dir target/timings
