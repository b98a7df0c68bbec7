#!/usr/bin/env bash
# Runs the workload with which deploy/build trains the published program (profile-guided optimization): common operations
# repeatedly, rarer ones once.
#
#   bench/train.sh PROGRAM
#
# SECONDS_EACH (4) sets the seconds per workload. Needs psql, curl, GNU time, and a Postgres that `howdah dev` finds.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:?the program to train}") each=${SECONDS_EACH:-4}
work=$(mktemp -d)
broker=''
end() {
    [[ -z $broker ]] || kill "$broker" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
workload() { "$program" bench "$@" --yardstick-seconds 1 --json >"$work/figures"; }

workload rates --rate 100 --rate 1000 --rate 5000 --seconds "$each"
workload single --seconds "$each"
workload cycle --seconds "$((2 * each))"
workload cycle --client rust --seconds "$each"
workload drain --jobs "$((50000 * each))"
workload slots --jobs "$((5000 * each))"
workload cycle --payload 65536 --batch 16 --in-flight 1024 --seconds "$each"
workload tenants --tenants 100 --jobs "$((10000 * each))" --seconds "$each" --rounds 1

start() { # FIRST_WORD FLAG...: starts howdah dev and waits for a line that begins with FIRST_WORD
    rm -f "$work/ready"
    "$program" dev --ephemeral --listen 127.0.0.1:0 --http 127.0.0.1:0 --log error "${@:2}" >"$work/ready" &
    broker=$!
    until grep -qs "^$1 " "$work/ready"; do
        kill -0 "$broker" || { echo 'howdah dev did not start' >&2; exit 1; }
        sleep 0.1
    done
}
stop() {
    kill -TERM "$broker"
    wait "$broker"
    broker=''
}

# Exercises TLS and tokens. `howdah dev` prints a command with the flags of a client: howdah --server URL --tls-ca FILE
# --token-file FILE types
start howdah --tls --auth token
read -ra client < <(grep '^howdah ' "$work/ready")
workload cycle --seconds "$((2 * each))" "${client[@]:1:6}"
stop

# Exercises the archive, the command line, the page, and HTTP.
start ready --http-enqueue
read -r _ grpc http url <"$work/ready"
export HOWDAH_SERVER=${grpc#grpc=} url=${url#postgres=} http=${http#http=}
# Runs an idle broker on an up-to-date database. deploy/build evaluates its profile separately.
LLVM_PROFILE_FILE=${AT_REST_PROFILE_FILE:-${LLVM_PROFILE_FILE:-}} HOWDAH_DATABASE_URL=$url \
    timeout --preserve-status 20 "$program" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --log error >"$work/quiet"
# The archive script counts the jobs in the files, so it must run before other jobs exist.
HOWDAH=$program bench/archive.sh "$url" "$work/archive" "$((100000 * each))" >"$work/quiet"
seq 1 "$((2000 * each))" | sed 's/.*/{"line": &}/' >"$work/lines"
"$program" enqueue trained --lines --file "$work/lines" >"$work/ids"
"$program" --log error work trained --exec true --jobs 4 --max-jobs 200 >"$work/quiet"
"$program" types >"$work/quiet"
"$program" job 1 >"$work/quiet"
"$program" jobs trained --limit 1000 >"$work/quiet" 2>&1
for page in ui/ ui/jobs ui/statistics metrics readyz; do curl -fsS -o "$work/quiet" "http://$http/$page"; done
curl -fsS -o "$work/quiet" --data-binary @"$work/lines" "http://$http/v1/jobs/trained?priority=-1&key=one"
stop
