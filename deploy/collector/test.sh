#!/usr/bin/env bash
# Sends spans to a real OpenTelemetry Collector and compares the received trees with docs/operate/tracing.md: in plain text, and
# over TLS with a private authority. `deploy/collector/test.sh PROGRAM`; default: target/dist/howdah.
#
# The collector is built from the Go module proxy, in the version of go.mod, and cached in target/collector, which takes minutes
# on two cores. Therefore CI does not run this script; tests in CI use a receiver generated from the protocol (tests/system/traces).
# Run it before a release, and after a change of the OpenTelemetry crates. It requires Go, Python 3, openssl, and a Postgres
# that `howdah dev` finds.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=deploy/common.sh
source ../common.sh
program=$(realpath "${1:-../../target/dist/howdah}")
built=$(realpath ../..)/target/collector
work=$(mktemp -d)
children=()

end() {
    local child
    for child in "${children[@]}"; do
        if kill "$child" 2>/dev/null; then wait "$child" 2>/dev/null || true; fi
    done
    rm -rf "$work"
}
trap end EXIT

# starts FILE TEXT: waits until the file of the last started child contains the text.
starts() {
    local deadline=$((SECONDS + 60))
    children+=($!)
    until grep -qsF "$2" "$1"; do
        if ((SECONDS >= deadline)) || ! kill -0 $! 2>/dev/null; then fail "no '$2': $(cat "$1"*)"; fi
        sleep 0.1
    done
}
# stops CHILD: stops a child, which sends its remaining spans and must succeed.
stops() {
    kill "$1"
    wait "$1" || fail "$1 ended with status $?"
}

# collect SCHEME FOLDER: runs jobs at a broker that exports to a collector, and compares the collector's output.
collect() {
    local scheme=$1 folder=$2 port tls='' collector broker server
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    mkdir "$folder"
    if [[ $scheme == https ]]; then
        authority "$folder"
        certificate "$folder" server /CN=collector IP:127.0.0.1
        tls="tls: { cert_file: $folder/server.pem, key_file: $folder/server.key }"
        export HOWDAH_OTLP_CA=$folder/ca.pem OTEL_EXPORTER_OTLP_CERTIFICATE=$folder/ca.pem
    fi
    cat >"$folder/collector.yaml" <<YAML
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: 127.0.0.1:$port
        $tls
exporters:
  file: { path: $folder/spans }
service:
  telemetry:
    metrics: { level: none }
  pipelines:
    traces: { receivers: [otlp], exporters: [file] }
YAML
    "$built/collector" --config "$folder/collector.yaml" 2>"$folder/collector" &
    starts "$folder/collector" 'Everything is ready'
    collector=$!
    HOWDAH_OTLP_SAMPLE_RATIO=1 "$program" dev --ephemeral --listen 127.0.0.1:0 --http 127.0.0.1:0 \
        --otlp-endpoint "$scheme://127.0.0.1:$port" >"$folder/broker" 2>"$folder/broker.log" &
    starts "$folder/broker" 'ready '
    broker=$!
    server=http://$(grep -oP 'grpc=\K\S+' "$folder/broker")
    run_jobs "$server" "$scheme://127.0.0.1:$port" >"$folder/order"
    # Stop the broker first: it sends its remaining spans before the collector writes its file.
    stops "$broker"
    stops "$collector"
    python3 check.py "$folder/spans" "$(cat "$folder/order")"
}

run_jobs() {
    local command=("$program" --log warn --server "$1") trace=0af7651916cd43dd8448eb211c80319c
    "${command[@]}" enqueue greet hello --traceparent "00-$trace-b7ad6b7169203331-01" >/dev/null
    "${command[@]}" enqueue spoil milk --max-attempts 1 --traceparent "00-$trace-b7ad6b7169203332-01" >/dev/null
    "${command[@]}" enqueue secret hello --traceparent "00-$trace-b7ad6b7169203333-00" >/dev/null
    "${command[@]}" enqueue plain hello >/dev/null
    "${command[@]}" work greet secret plain --exec 'tr a-z A-Z' --drain
    "${command[@]}" work spoil --exec 'echo sour >&2; exit 1' --drain 2>"$work/spoil.log"
    # Runs a producer and a worker that export their own spans.
    HOWDAH_SERVER=$1 OTEL_EXPORTER_OTLP_ENDPOINT=$2 "$built/jobs" 2>"$work/jobs.log" || fail "$(cat "$work/jobs.log")"
}

mkdir -p "$built"
# `go mod tidy` needs -e here, because a test of the exporter imports a module that the Go proxy does not have.
go build -mod=readonly -trimpath -o "$built/" ./collector ./jobs
echo '--- in plain text'
collect http "$work/plain"
echo '--- over TLS'
collect https "$work/tls"
