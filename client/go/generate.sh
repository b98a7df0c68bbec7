#!/usr/bin/env bash
# Generates howdahv1 from the protocol. With --check it fails if the committed code is not current.
set -euo pipefail
cd "$(dirname "$0")"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
${BUF:-npx --yes @bufbuild/buf@1.75.0} generate --template buf.gen.yaml --output "$fresh"
if [[ ${1:-} == --check ]]; then
    diff -r "$fresh/howdahv1" howdahv1 || { echo 'howdahv1 is not current: run client/go/generate.sh' >&2; exit 1; }
else
    rm -rf howdahv1
    mv "$fresh/howdahv1" howdahv1
fi
