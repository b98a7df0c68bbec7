#!/bin/sh
# Generates the Python stubs of Howdah's protocol, beside this script or in the directory given.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
mkdir -p "$out"
"${PYTHON:-python3}" -m grpc_tools.protoc -I "$here/../../proto" \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    "$here"/../../proto/howdah/v1/*.proto
