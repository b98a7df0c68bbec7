#!/bin/sh
# Installs, builds, checks and tests this package from nothing. HOWDAH_BIN names the broker's program, if it is not on the PATH.
set -eu
cd "$(dirname "$0")"
npm ci --no-audit --no-fund
npm run build
npm run check
npm test
