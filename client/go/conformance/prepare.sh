#!/usr/bin/env bash
# Builds the adapter, for run.sh. Without GOPATH and GOCACHE, what Go fetches and builds goes below target/ of the project.
set -euo pipefail
cd "$(dirname "$0")"
target=$(cd ../../.. && pwd)/target/go
mkdir -p "$target"
export GOPATH=${GOPATH:-$target/path} GOCACHE=${GOCACHE:-$target/cache} GOFLAGS="${GOFLAGS:-} -buildvcs=false -modcacherw"
go build -o "$target/howdah-conformance-go" .
