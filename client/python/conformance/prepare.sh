#!/usr/bin/env bash
# Builds the Python client as a wheel. Installs it and the requirements of its conformance adapter below target/python
# of the project.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=$(cd ../.. && pwd)/target/python/conformance
export PIP_DISABLE_PIP_VERSION_CHECK=1
[[ -x $directory/bin/pip ]] || "${PYTHON:-python3}" -m venv "$directory"
"$directory/bin/pip" install --quiet opentelemetry-sdk
"$directory/bin/pip" install --quiet --force-reinstall --no-deps .
"$directory/bin/pip" install --quiet .
