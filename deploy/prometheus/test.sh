#!/usr/bin/env bash
# Makes each alert fire and resolve, with promtool from the PATH, or on Debian from the package `prometheus`, unpacked below
# target/ without installing it.
set -euo pipefail
cd "$(dirname "$0")"
readonly tools=../../target/tools/prometheus

if ! command -v promtool >/dev/null; then
    if [[ ! -x $tools/usr/bin/promtool ]]; then
        if ! command -v apt-get >/dev/null; then
            echo '!!! promtool is not installed: the alerts are NOT tested.'
            exit 0
        fi
        mkdir -p "$tools"
        (cd "$tools" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb)
    fi
    PATH=$PWD/$tools/usr/bin:$PATH
fi

failed=0
for rule in *.yml; do
    [[ -f tests/$rule ]] || { echo "tests/$rule is missing: no test makes the alert of $rule fire" >&2; failed=1; continue; }
    # One test must both fire and resolve an alert: resolving proves nothing about a series that has never fired.
    awk '/^  - name:/ { fired = 0 } /exp_alerts:$/ { fired = 1 } /exp_alerts: \[\]/ && fired { rested = 1 } END { exit !rested }' "tests/$rule" ||
        { echo "tests/$rule: no test makes the alert fire and then rest" >&2; failed=1; }
done
promtool check rules --lint-fatal ./*.yml || failed=1
promtool test rules tests/*.yml || failed=1
exit "$failed"
