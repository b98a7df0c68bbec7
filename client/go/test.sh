#!/usr/bin/env bash
# Runs all checks and tests of the Go client. HOWDAH_BIN is the program howdah, by default `howdah` from the PATH. Unless GOPATH
# and GOCACHE are set, Go stores its downloads and build cache below the project's target/. `--conformance CMD` also runs the
# conformance suite; CMD is the program howdah-conformance.
set -euo pipefail
cd "$(dirname "$0")"
target=$PWD/../../target/go
export GOPATH=${GOPATH:-$target/path} GOCACHE=${GOCACHE:-$target/cache} GOFLAGS="${GOFLAGS:-} -buildvcs=false -modcacherw"

./generate.sh --check
unformatted=$(gofmt -l . ../../examples/*/go)
[[ -z $unformatted ]] || { echo "not formatted: $unformatted" >&2; exit 1; }
for module in . conformance tools ../../examples/*/go; do
    (cd "$module" && go mod tidy -diff && go vet ./...)
done
go tool -modfile=tools/go.mod staticcheck ./...
(cd conformance && go tool -modfile=../tools/go.mod staticcheck .)
go test -race -count=1 ./...

if [[ ${1:-} == --conformance ]]; then
    mkdir -p "$target"
    go build -C conformance -o "$target/howdah-conformance-go" .
    "$2" --client "$target/howdah-conformance-go"
fi
