#!/usr/bin/env bash
# Tries the page for operators in a real browser: `just browser`. HOWDAH_BIN names the broker's program, HOWDAH_BROWSER the
# browser. With --pictures it writes those of docs/page, too. Without a browser it says so, and ends well.
set -euo pipefail
cd "$(dirname "$0")"

find_browser() {
    local name
    for name in "${HOWDAH_BROWSER:-}" chromium chromium-browser google-chrome; do
        if [[ -n $name ]] && command -v "$name"; then
            return
        fi
    done
    # On Debian as root, as the other programs of CI are installed.
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 || true
        command -v chromium && return
    fi
    return 1
}

if ! command -v node >/dev/null || ! HOWDAH_BROWSER=$(find_browser); then
    echo '!!! there is no browser (chromium) or no Node.js: the page for operators is NOT tried in one'
    exit
fi
export HOWDAH_BROWSER HOWDAH_BIN=${HOWDAH_BIN:-$PWD/../../target/debug/howdah}
if ! npm ci --silent --no-audit --no-fund; then
    echo '!!! playwright-core cannot be installed: the page for operators is NOT tried in a browser'
    exit
fi
exec node page.mjs "$@"
