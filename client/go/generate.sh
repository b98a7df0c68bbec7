#!/usr/bin/env bash
# Generates the package howdahv1 from the protocol. With --check, fails if the committed code is out of date.
set -euo pipefail
cd "$(dirname "$0")"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
${BUF:-npx --yes @bufbuild/buf@1.75.0} generate --template buf.gen.yaml --output "$fresh"
if [[ ${1:-} == --check ]]; then
    diff -r "$fresh/howdahv1" howdahv1 || { echo 'howdahv1 is out of date: run client/go/generate.sh' >&2; exit 1; }
else
    rm -rf howdahv1
    mv "$fresh/howdahv1" howdahv1
fi
