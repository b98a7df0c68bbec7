#!/bin/sh
# Starts the adapter, after prepare.sh.
exec "$(dirname "$0")/adapter"
