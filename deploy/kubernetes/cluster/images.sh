# shellcheck shell=bash
# Images of the pods, and the Postgres of their brokers: a part of deploy/kubernetes/test.sh.
# shellcheck disable=SC2154  # set by test.sh

# Builds the images that the manifests name, and the pause image that holds a pod's namespaces, in $work/images.tar, from Debian
# packages.
make_images() {
    local tool
    hold_namespace || fail "there can be no containers here: $(cat "$work/held")"
    base_images
    build_image howdah:0.1.0 "$PWD/deploy/docker/Dockerfile" "$PWD"
    mkdir -p "$work/worker/bin" "$work/pause"
    cp "$work/rust/bin/busybox" "$work/worker/bin/"
    for tool in sh seq tr usleep; do ln -s busybox "$work/worker/bin/$tool"; done
    cat >"$work/worker/Dockerfile" <<'END'
FROM docker.io/library/howdah:0.1.0
COPY bin/ /usr/bin/
CMD ["work", "email.send", "--exec", "tr a-z A-Z"]
END
    build_image howdah-worker:1 "$work/worker/Dockerfile" "$work/worker"
    cp "$(type -P catatonit)" "$work/pause/catatonit"
    tar -c -C "$work/pause" . | podman import --quiet --change 'ENTRYPOINT ["/catatonit", "-P"]' - howdah.test/pause:1 >/dev/null
    podman save --quiet --multi-image-archive --format docker-archive --output "$work/images.tar" \
        docker.io/library/howdah:0.1.0 docker.io/library/howdah-worker:1 howdah.test/pause:1
}
build_image() {
    podman build --quiet --format docker --isolation chroot --network host --pull=never --volume "$work/stripped:/program:ro" \
        --file "$2" --tag "docker.io/library/$1" "$3" >/dev/null 2>"$work/build.log" || fail "$(cat "$work/build.log")"
}
load_images() {
    ctr --address "$work/containerd/socket" --namespace k8s.io images import "$work/images.tar" >"$work/logs/images" 2>&1 ||
        fail "$(cat "$work/logs/images")"
}

postgres() {
    local bin
    bin=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1)
    (cd / && setpriv --reuid nobody --regid nogroup --clear-groups -- "$bin/$1" "${@:2}")
}
start_postgres() {
    install -d -o nobody -g nogroup "$work/postgres"
    printf 'secret\n' >"$work/password"
    postgres initdb --pgdata "$work/postgres/data" --username howdah --pwfile "$work/password" --auth scram-sha-256 >"$work/logs/initdb" 2>&1 ||
        fail "$(cat "$work/logs/initdb")"
    printf '%s\n' "listen_addresses = '$node'" "unix_socket_directories = ''" 'fsync = off' >>"$work/postgres/data/postgresql.conf"
    printf 'host all all %s scram-sha-256\n' "$pods" >>"$work/postgres/data/pg_hba.conf"
    run_postgres
    url=postgres://howdah:secret@$node/postgres
}
run_postgres() { postgres pg_ctl start --wait --pgdata "$work/postgres/data" --log "$work/postgres/log" >/dev/null; }
stop_postgres() { postgres pg_ctl stop --mode immediate --wait --pgdata "$work/postgres/data" >/dev/null; }
in_database() { psql --no-psqlrc --tuples-only --no-align --dbname "$url" --command "$1"; }
