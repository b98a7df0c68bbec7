# shellcheck shell=bash
# Builds the Dockerfile and tests a container of the image: a part of deploy/test.sh, which defines `say`, `fail` and the
# variables. No image registry is used. The Dockerfile's base images are built here under their names: the last stage's from the
# packages of the real image, and the Rust image from a shell and a `cargo` that copies the prebuilt program.
# shellcheck disable=SC2154  # set by deploy/test.sh

# Runs containers in a separate mount namespace, because podman requires cgroups version 2, which the host may have
# beside version 1.
hold_namespace() {
    # shellcheck disable=SC2016  # the shell inside expands it
    unshare --mount --cgroup sh -c '
        [ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ] ||
            { umount --recursive --lazy /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; } || exit
        echo held
        exec sleep infinity' >"$work/held" 2>&1 &
    holder=$!
    children+=("$holder")
    within 30 held_or_ended && grep --quiet held "$work/held"
}
held_or_ended() { grep held "$work/held" || ! kill -0 "$holder"; }

# Keeps podman's storage below $work. Prefers crun to runc, because it can run containers without cgroups.
podman() {
    local runtime=()
    ! type -P crun >/dev/null || runtime=(--runtime crun)
    nsenter --target "$holder" --mount --cgroup -- "$(type -P podman)" "${runtime[@]}" --root "$work/podman/store" --runroot "$work/podman/run" \
        --tmpdir "$work/podman/tmp" --cgroup-manager cgroupfs --log-level fatal "$@"
}
remove_containers() {
    if [[ -n ${holder-} ]]; then podman rm --all --force --time 1 >/dev/null 2>&1 || true; fi
}

test_image() {
    say 'container image'
    "$cache/tools/bin/hadolint" deploy/docker/Dockerfile
    if ! type -P podman >/dev/null; then
        echo '!!! podman is not installed: building the Dockerfile is NOT tested'
        return
    fi
    if ! hold_namespace; then
        echo "!!! containers cannot run here ($(cat "$work/held")): building the Dockerfile is NOT tested"
        return
    fi
    base_images
    podman build --quiet --format docker --isolation chroot --network host --pull=never --volume "$work/stripped:/program:ro" \
        --file "$PWD/deploy/docker/Dockerfile" --tag howdah "$PWD" >/dev/null 2>"$work/build.log" || fail "$(cat "$work/build.log")"
    echo 'it was built'
    if ! container probe howdah --version >"$work/probe" 2>&1; then
        echo "!!! podman cannot run a container here ($(tail -n 1 "$work/probe")): running the image is NOT tested"
        mkdir "$work/image"
        podman create --name plain howdah >/dev/null
        podman export plain | tar -x -C "$work/image"
        works "$work/image" /usr/bin/howdah "HOWDAH_DATABASE_URL=$url"
        return
    fi
    container_serves
    container_refuses
}

base_images() {
    local base=$work/base rust=$work/rust package
    mkdir -p "$base" "$rust/bin" "$rust/tmp" "$cache/debs"
    for package in base-files libc6 libgcc-s1 gcc-12-base ca-certificates tzdata busybox-static; do
        compgen -G "$cache/debs/${package}_*.deb" >/dev/null || (cd "$cache/debs" && apt-get download -qq "$package") ||
            missing "apt-get cannot download $package"
        [[ $package == busybox-static ]] || dpkg-deb --extract "$cache/debs/${package}"_*.deb "$base"
    done
    dpkg-deb --extract "$cache/debs"/busybox-static_*.deb "$rust"
    ln -s busybox "$rust/bin/sh"
    # Strip the program here, because the image has only a stub instead of `strip`.
    printf '#!/bin/sh\n' >"$rust/bin/strip"
    strip --strip-unneeded -o "$work/stripped" "$program"
    cat >"$rust/bin/cargo" <<'CARGO'
#!/bin/sh
set -e
[ "$*" = 'build --locked --profile dist --package howdah-cli --features archive' ] || { echo "this cargo does not know: $*" >&2; exit 1; }
[ -f Cargo.lock ] && [ -f cli/Cargo.toml ] || { echo 'a part of the source is missing' >&2; exit 1; }
[ ! -e target ] && [ ! -e .git ] || { echo '.dockerignore does not hold' >&2; exit 1; }
busybox mkdir -p target/dist
busybox cp /program target/dist/howdah
CARGO
    chmod +x "$rust/bin/cargo" "$rust/bin/strip"
    tar -c -C "$base" . | podman import --quiet - gcr.io/distroless/cc-debian12:nonroot >/dev/null
    tar -c -C "$rust" . | podman import --quiet - docker.io/library/rust:1.92-bookworm >/dev/null
}

# container NAME OPTION... IMAGE ARGUMENT...: runs a container with the restrictions of deploy/kubernetes, without a network.
container() {
    podman run --name "$1" --read-only --cap-drop all --security-opt no-new-privileges --network none --cgroups disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \
        --health-interval disable --volume "$sockets:$sockets" --env "HOWDAH_DATABASE_URL=$url" "${@:2}"
}
healthy() { podman healthcheck run broker; }

container_serves() {
    local id
    container broker --detach --env HOWDAH_INSECURE=true howdah >/dev/null 2>&1 || fail 'the image does not start'
    within 60 healthy || fail "its health check does not succeed: $(podman logs broker 2>&1)"
    [[ $(stat --format %u "/proc/$(podman inspect --format '{{.State.Pid}}' broker)") == 65532 ]] || fail 'the image runs as another user'
    # The image has no shell that could run a worker's command, so the job is a SQL statement.
    id=$(podman exec broker /usr/bin/howdah enqueue sql 'SELECT 6 * 7 AS answer')
    podman exec broker /usr/bin/howdah --log warn work --sql "$url" --drain
    [[ $(podman exec broker /usr/bin/howdah wait "$id") == *42* ]] || fail 'the job has no result'
    podman stop --time 40 broker >/dev/null 2>&1
    [[ $(podman inspect --format '{{.State.ExitCode}}' broker) == 0 ]] || fail "it ended badly: $(podman logs broker 2>&1)"
    [[ $(podman logs broker 2>&1) == *'"message":"stopped"'* ]] || fail 'it did not drain'
    podman rm broker >/dev/null 2>&1
    echo 'it started, was healthy, ran a job and drained'
}

container_refuses() {
    if container open howdah >"$work/open" 2>&1; then fail 'it listens on all addresses without TLS, although HOWDAH_INSECURE is not set'; fi
    grep --quiet -e --insecure "$work/open" || fail "it does not say why it does not start: $(cat "$work/open")"
    container broker --detach --env HOWDAH_INSECURE=true --env HOWDAH_DATABASE_URL=postgres://howdah@127.0.0.1:1/howdah howdah >/dev/null 2>&1
    within 30 waits || fail "it does not wait for Postgres: $(podman logs broker 2>&1)"
    ! healthy >/dev/null 2>&1 || fail 'it is healthy without Postgres'
    podman rm --force --time 10 broker >/dev/null 2>&1
    echo 'it refuses to serve everybody, and is not healthy without Postgres'
}
waits() { [[ $(podman logs broker 2>&1) == *'connecting to Postgres failed'* ]]; }
