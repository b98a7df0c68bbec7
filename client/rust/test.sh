#!/usr/bin/env bash
# Packages the Rust client and the protocol as for crates.io, and uses the packages in an empty project, which runs the worker and
# the producer of README.md. HOWDAH_BIN is the program howdah, if it is not in the PATH. All files are created below target/.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
work=$CARGO_TARGET_DIR/package-test
version=$(sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml | head -1)

echo '=== package'
cargo package --quiet --offline --allow-dirty --no-verify --exclude-lockfile -p howdah-proto -p howdah-client
rm -rf "$work"
mkdir -p "$work/project/src/bin"
for crate in howdah-proto howdah-client; do
    tar -xzf "$CARGO_TARGET_DIR/package/$crate-$version.crate" -C "$work"
done

echo '=== use the packages from an empty project'
project=$work/project readme=$work/howdah-client-$version/README.md
{
    printf '[package]\nname = "first-job"\nversion = "0.0.0"\nedition = "2024"\n\n'
    # shellcheck disable=SC2016 # backticks of Markdown
    sed -n '/^```toml$/,/^```$/{/^```/d;p}' "$readme"
    printf '\n[patch.crates-io]\n'
    for crate in howdah-proto howdah-client; do
        printf '%s = { path = "%s" }\n' "$crate" "$work/$crate-$version"
    done
    # An empty [workspace] table, so that the project does not belong to the surrounding workspace.
    printf '\n[workspace]\n'
} >"$project/Cargo.toml"
# The project uses the repository's Cargo.lock, so that cargo needs only crate versions that are already downloaded.
cp Cargo.lock "$project/"
for name in worker producer; do
    sed -n "/^\/\/ src\/bin\/$name.rs$/,/^\`\`\`$/{/^\`\`\`/d;p}" "$readme" >"$project/src/bin/$name.rs"
done
lines=$(cat "$project"/src/bin/*.rs | wc -l)
((lines <= 40)) || { echo "README.md has $lines lines of code; they should be at most 40" >&2; exit 1; }
cargo build --quiet --offline --manifest-path "$project/Cargo.toml"

echo '=== run the first job'
: >"$work/broker"
"${HOWDAH_BIN:-howdah}" dev --ephemeral --listen 127.0.0.1:0 --http 127.0.0.1:0 --log error >"$work/broker" &
broker=$! worker=
trap 'kill $worker $broker 2>/dev/null || true; wait' EXIT
until HOWDAH_SERVER=$(sed -nE 's/^ready grpc=([^ ]+) .*/\1/p' "$work/broker") && [[ -n $HOWDAH_SERVER ]]; do
    kill -0 $broker 2>/dev/null || { echo 'the broker has not started: is there a program howdah?' >&2; exit 1; }
    sleep 0.1
done
export HOWDAH_SERVER
"$CARGO_TARGET_DIR/debug/worker" >"$work/worker" &
worker=$!
said=$(timeout 60 "$CARGO_TARGET_DIR/debug/producer")
kill -TERM $worker
wait $worker
worker=
[[ $said == *' {"sent":true}' && $(<"$work/worker") == 'to ann@example.com, attempt 1' ]] ||
    { echo "unexpected: $said; $(<"$work/worker")" >&2; exit 1; }
echo "ok: $said"
