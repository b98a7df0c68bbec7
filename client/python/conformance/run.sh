#!/bin/sh
# Starts the adapter, after prepare.sh.
here=$(cd "$(dirname "$0")" && pwd)
# -P: the installed package, not the sources beside it.
export PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
exec "$here/../../../target/python/conformance/bin/python" "$here/adapter.py"
