#!/bin/sh
# Starts the Python client's conformance adapter. Run prepare.sh first.
here=$(cd "$(dirname "$0")" && pwd)
# Python imports the installed package, not the sources next to the adapter.
export PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
exec "$here/../../../target/python/conformance/bin/python" "$here/adapter.py"
