#!/bin/sh
# Builds the client and its adapter.
exec "$(dirname "$0")/adapter" --build
