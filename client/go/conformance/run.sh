#!/bin/sh
# Starts the adapter that prepare.sh has built.
exec "$(dirname "$0")/../../../target/go/howdah-conformance-go"
