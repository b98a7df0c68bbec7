#!/bin/sh
# Builds the TypeScript client and its conformance adapter.
set -eu
cd "$(dirname "$0")/.."
npm ci --no-audit --no-fund
npm run build
npx tsc -p tsconfig.test.json
