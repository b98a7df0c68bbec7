#!/usr/bin/env bash
# Tests the shop in each language, or in the languages that the arguments name: runs the shop's tests, then starts two
# shops with one broker, places orders over HTTP, and compares the results of their last jobs. HOWDAH_BIN names the
# program howdah; default: howdah on the PATH. Programs are built below target/shop.
set -euo pipefail
HOWDAH_BIN=$(realpath "$(command -v "${HOWDAH_BIN:-howdah}")")
export HOWDAH_BIN PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "$0")/../.."
root=$PWD work=$PWD/target/shop
shop=$root/examples/shop
languages=("$@")
(($# > 0)) || languages=(python typescript go)
mkdir -p "$work"

# build_LANGUAGE builds the program, test_LANGUAGE runs its tests, and run_LANGUAGE replaces this process by the program.
build_python() {
    [[ -x $work/python/bin/python ]] || python3 -m venv "$work/python"
    "$work/python/bin/pip" install --quiet --disable-pip-version-check "$root/client/python"
}
test_python() { (cd "$shop/python" && "$work/python/bin/python" -m unittest); }
run_python() { exec "$work/python/bin/python" "$shop/python/shop.py"; }

build_typescript() {
    (cd client/typescript && npm ci --silent --no-audit --no-fund && npm run --silent build)
    mkdir -p "$work/typescript"
    cp "$shop"/typescript/*.{ts,json} "$work/typescript"
    sed "s|file:../../../|file:$root/|" "$shop/typescript/package.json" >"$work/typescript/package.json"
    (cd "$work/typescript" && npm install --silent --no-audit --no-fund --install-links && npm run --silent build)
}
test_typescript() { (cd "$work/typescript" && npm test --silent); }
run_typescript() { exec node "$work/typescript/build/shop.js"; }

build_go() { (cd "$shop/go" && go build -buildvcs=false -o "$work/go/" .); }
test_go() { (cd "$shop/go" && go test -buildvcs=false -count=1 .); }
run_go() { exec "$work/go/shop"; }

# expect NAME WANTED FOUND: ends with an error if the two texts differ.
expect() {
    [[ $2 == "$3" ]] || { printf 'FAILED: the shop in %s: %s\n  expected: %s\n  found:    %s\n' "$language" "$@" >&2; exit 1; }
}

# order PORT ORDER: posts an order. Prints the status of the answer, and its text if the order was accepted.
order() {
    local status url=http://127.0.0.1:$1/orders
    status=$(curl --silent --max-time 30 --output "$files/answer" --write-out '%{http_code}' --data "$2" "$url")
    if [[ $status == 202 ]]; then echo "$status $(cat "$files/answer")"; else echo "$status"; fi
}

# until_it_works COMMAND...: repeats a command for up to 30 seconds.
until_it_works() {
    local tries
    for tries in {1..300}; do
        ! "$@" >/dev/null 2>&1 || return 0
        ((tries < 300)) || { echo "FAILED: the shop in $language: this did not succeed within 30 s: $*" >&2; exit 1; }
        sleep 0.1
    done
}

free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

files=$(mktemp -d)
processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true; wait; rm -rf "$files"' EXIT

check() {
    local ready=$files/$language ports=() port shops broker process placed id
    "$HOWDAH_BIN" dev --ephemeral --listen 127.0.0.1:0 --http 127.0.0.1:0 --log error >"$ready" &
    broker=$!
    processes=("$broker")
    until_it_works grep '^ready ' "$ready"
    HOWDAH_SERVER=$(sed -nE 's/^ready grpc=([^ ]+) .*/\1/p' "$ready")
    export HOWDAH_SERVER

    for _ in 1 2; do
        port=$(free_port)
        (PORT=$port "run_$language") &
        processes+=($!)
        until_it_works curl --silent "http://127.0.0.1:$port/"
        ports+=("$port")
    done
    expect 'schedules after two starts' shelf.nightly "$("$HOWDAH_BIN" schedule list | awk 'NR > 1 { print $1 }')"

    for port in "${ports[@]}"; do
        placed=$(order "$port" "{\"email\": \"ann@example.com\", \"quantities\": [$(seq -s, 100)]}")
        id=${placed#202 }
        expect 'an order of 100 items is accepted' "202 ${id//[^0-9]/}" "$placed"
        expect 'the result of the last job' '"ann@example.com pays 15150"' "$("$HOWDAH_BIN" wait --result --timeout 1m "$id")"
        # The item before the last job is the hundredth, whose first attempt fails.
        expect 'attempts of an item' '2 of 5' "$("$HOWDAH_BIN" job $((id - 1)) | sed -n 's/^ *attempts  //p')"
    done
    expect 'an order that is not JSON' 400 "$(order "${ports[0]}" 'two of everything')"

    shops=("${processes[@]:1}")
    kill -TERM "${shops[@]}"
    for process in "${shops[@]}"; do
        wait "$process" || expect 'exit status after SIGTERM' 0 $?
    done
    kill -TERM "$broker"
    wait "$broker"
    processes=()
}

for language in "${languages[@]}"; do
    echo "=== $language"
    "build_$language"
    "test_$language"
    check
    echo "the shop in $language: ok"
done
