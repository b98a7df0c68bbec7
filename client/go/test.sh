#!/usr/bin/env bash
# All checks and tests of the Go client. HOWDAH_BIN is the program of the broker, else `howdah` on the PATH. Without GOPATH
# and GOCACHE, what Go fetches and builds goes below target/ of the project. With --conformance CMD (howdah-conformance), the
# suite runs too.
set -euo pipefail
cd "$(dirname "$0")"
target=$PWD/../../target/go
export GOPATH=${GOPATH:-$target/path} GOCACHE=${GOCACHE:-$target/cache} GOFLAGS="${GOFLAGS:-} -buildvcs=false -modcacherw"

./generate.sh --check
unformatted=$(gofmt -l . ../../examples/thumbnails/go)
[[ -z $unformatted ]] || { echo "not formatted: $unformatted" >&2; exit 1; }
for module in . conformance tools ../../examples/thumbnails/go; do
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
