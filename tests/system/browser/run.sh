#!/usr/bin/env bash
# Tests the operator page in a real browser: `just browser`. HOWDAH_BIN is the broker's program, HOWDAH_BROWSER the browser. With
# --pictures it also writes the screenshots of docs/page. Without a browser it prints a message and succeeds.
set -euo pipefail
cd "$(dirname "$0")"

find_browser() {
    local name
    for name in "${HOWDAH_BROWSER:-}" chromium chromium-browser google-chrome; do
        if [[ -n $name ]] && command -v "$name"; then
            return
        fi
    done
    # As root on Debian, install Chromium, as CI does with other programs.
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 || true
        command -v chromium && return
    fi
    return 1
}

if ! command -v node >/dev/null || ! HOWDAH_BROWSER=$(find_browser); then
    echo '!!! a browser (chromium) or Node.js is missing: the operator page is NOT tested in a browser'
    exit
fi
export HOWDAH_BROWSER HOWDAH_BIN=${HOWDAH_BIN:-$PWD/../../../target/debug/howdah}
if ! npm ci --silent --no-audit --no-fund; then
    echo '!!! playwright-core cannot be installed: the operator page is NOT tested in a browser'
    exit
fi
exec node page.mjs "$@"
