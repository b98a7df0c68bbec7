# shellcheck shell=bash
# What the tests of packages share.

say() { printf '\n--- %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
missing() { echo "MISSING: $*" >&2; exit 77; }

# within SECONDS COMMAND...: waits until the command succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}
