#!/usr/bin/env bash
# Builds the Go client's conformance adapter for run.sh. Unless GOPATH and GOCACHE are set, Go stores its downloads and
# build cache below the project's target/.
set -euo pipefail
cd "$(dirname "$0")"
target=$(cd ../../.. && pwd)/target/go
mkdir -p "$target"
export GOPATH=${GOPATH:-$target/path} GOCACHE=${GOCACHE:-$target/cache} GOFLAGS="${GOFLAGS:-} -buildvcs=false -modcacherw"
go build -o "$target/howdah-conformance-go" .
