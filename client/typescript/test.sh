#!/bin/sh
# Installs, builds, checks and tests this package, without any preparation. HOWDAH_BIN names the program howdah; default:
# howdah on the PATH.
set -eu
cd "$(dirname "$0")"
npm ci --no-audit --no-fund
npm run build
npm run check
npm test
