# shellcheck shell=bash
# Tests the Debian package under systemd: a part of deploy/test.sh, which defines `say`, `fail` and the variables. systemd-nspawn
# boots systemd in a root directory with a private network: PID 1, journal, unit and sandbox are real. If it cannot boot (for
# example in a container without cgroups), the test prints a message and skips only this part.
# shellcheck disable=SC2154  # set by deploy/test.sh

readonly secret=s3cr3t-w0rd

# boot ROOT: boots systemd in the root directory, with Postgres's socket where Debian has it. On a host without systemd,
# this function creates systemd's cgroups, and `leave_cgroups` removes them.
cgroups=()
boot() {
    local root=$1 hierarchy own=(--keep-unit)
    if [[ -d /run/systemd/system ]]; then
        own=()
    else
        for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
            [[ -w $hierarchy/cgroup.procs ]] || continue
            mkdir "$hierarchy/howdah-test-$$" 2>/dev/null || return 1
            cgroups+=("$hierarchy/howdah-test-$$")
        done
    fi
    (
        for hierarchy in "${cgroups[@]}"; do echo "$BASHPID" >"$hierarchy/cgroup.procs"; done
        exec systemd-nspawn --quiet --boot --directory="$root" --machine="howdah-test-$$" --register=no "${own[@]}" --private-network \
            --bind="$sockets:/run/postgresql" --settings=no --link-journal=no --resolv-conf=off --timezone=off --console=pipe
    ) </dev/null >"$work/boot.log" 2>&1 &
    machine=$!
    children+=("$machine")
    within 60 booted_or_ended && kill -0 "$machine" 2>/dev/null
}
booted_or_ended() {
    kill -0 "$machine" || return 0
    init=$(pgrep --parent "$machine" --exact systemd) && [[ $(in_machine systemctl is-system-running) == running ]]
}
leave_cgroups() {
    local cgroup
    for cgroup in "${cgroups[@]}"; do
        # systemd does not remove the cgroups it created.
        find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
    done
}

# in_machine COMMAND...: runs a command as root in the machine's namespaces.
in_machine() { nsenter --target "$init" --all env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }


# property NAME: prints a property of the unit.
property() { in_machine systemctl show --property "$1" --value howdah; }
is() { [[ $(property "$1") == "$2" ]]; }
restarted() { (($(property NRestarts) >= $1)); }
journal() { in_machine journalctl --unit howdah --output cat --no-pager; }
logged() { [[ $(journal) == *"$1"* ]]; }
ready() { in_machine howdah health --wait 30s >/dev/null || fail "$1: $(journal | tail -n 20)"; }
set_url() { echo "$1" >"$root/etc/howdah/database-url"; }

test_systemd() {
    say 'unit of systemd'
    local root=$work/debian inside='postgres://howdah@/howdah?host=%2Frun%2Fpostgresql'
    if ! command -v systemd-nspawn >/dev/null; then
        echo '!!! systemd-nspawn is not installed: the systemd unit is NOT tested'
        return
    fi
    if ! boot "$root"; then
        echo "!!! systemd cannot be booted here ($(tail -n 1 "$work/boot.log")): the systemd unit is NOT tested"
        return
    fi
    unit_is_installed
    sandbox_holds
    job_runs
    tls_is_reloaded
    job_outlives_a_restart
    broker_comes_back
    bad_url_is_not_told
    package_is_purged
    kill "$machine"
    wait "$machine" || true
}

unit_is_installed() {
    cp "$package" "$root/howdah.deb"
    in_machine dpkg --install /howdah.deb >/dev/null
    in_machine systemd-analyze verify howdah.service || fail 'systemd does not understand the unit'
    is ActiveState inactive || fail 'the package starts a broker that has no URL yet'
    is UnitFileState disabled || fail 'the package enables a broker that has no URL yet'
    set_url "$inside"
    in_machine systemctl --quiet enable --now howdah
    ready 'the unit does not start'
    echo 'it started'
}

# Checks the sandbox of the running processes, because `systemd-analyze security` only reads the unit file.
sandbox_holds() {
    local pid user status line
    pid=$(property MainPID)
    user=$(in_machine stat --format %u "/proc/$pid")
    ((user >= 61184 && user <= 65519)) || fail "the broker runs as $user, which is no dynamic user"
    status=$(in_machine cat "/proc/$pid/status")
    for line in 'CapBnd:.0000000000000000' 'CapEff:.0000000000000000' 'NoNewPrivs:.1' 'Seccomp:.2'; do
        grep --quiet "^$line$" <<<"$status" || fail "the broker has another $line"
    done
    [[ $(in_machine readlink "/proc/$pid/ns/user") != "$(in_machine readlink /proc/1/ns/user)" ]] || fail 'PrivateUsers does not hold'
    # In the mount namespace of the unit, even root cannot write, and home directories are hidden.
    if in_machine nsenter --target "$pid" --mount touch /etc/howdah/new /usr/new 2>/dev/null; then
        fail 'ProtectSystem does not hold'
    fi
    in_machine touch /root/somewhere
    if in_machine nsenter --target "$pid" --mount test -e /root/somewhere; then
        fail 'ProtectHome does not hold'
    fi
    echo 'its sandbox holds'
}

job_runs() {
    local id
    # Without TLS there is nothing to reload, and the broker continues.
    in_machine systemctl reload howdah
    id=$(in_machine howdah enqueue greet hello)
    in_machine howdah work greet --exec 'tr a-z A-Z' --drain
    [[ $(in_machine howdah wait "$id") == *HELLO* ]] || fail 'the job has no result'
    echo 'it ran a job'
}

# Follows docs/operate/deploy.md: TLS files that a group can read, and a reload after the files changed.
tls_is_reloaded() {
    local files=$root/etc/howdah/tls before
    local settings=(HOWDAH_TLS_CERT=/etc/howdah/tls/server.pem HOWDAH_TLS_KEY=/etc/howdah/tls/server.key)
    in_machine groupadd --system howdah-tls
    in_machine install -d -m 750 -g howdah-tls /etc/howdah/tls
    certificate "$files"
    in_machine install -d /etc/systemd/system/howdah.service.d
    printf '[Service]\nSupplementaryGroups=howdah-tls\nEnvironment=%s %s\n' "${settings[@]}" >"$root/etc/systemd/system/howdah.service.d/tls.conf"
    in_machine systemctl daemon-reload
    in_machine systemctl restart howdah
    in_machine env "${settings[@]}" howdah health --wait 30s >/dev/null || fail "it does not start with TLS: $(journal | tail -n 20)"
    in_machine howdah --server https://127.0.0.1:7432 --tls-ca /etc/howdah/tls/server.pem types >/dev/null || fail 'it has no TLS'
    before=$(property MainPID)
    certificate "$files"
    in_machine systemctl reload howdah
    within 30 logged 'the TLS files have changed; new connections use them' || fail "it does not read them again: $(journal | tail -n 20)"
    is MainPID "$before" || fail 'a reload restarts it'
    rm -r "$files" "$root/etc/systemd/system/howdah.service.d"
    in_machine systemctl daemon-reload
    in_machine systemctl restart howdah
    ready 'it does not start without TLS'
    echo 'it read the files of TLS again'
}
# certificate FOLDER: creates another self-signed certificate.
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=howdah \
        -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1 -keyout "$1/server.key" -out "$1/server.pem" 2>/dev/null
    in_machine chgrp howdah-tls /etc/howdah/tls/server.key /etc/howdah/tls/server.pem
    in_machine chmod 640 /etc/howdah/tls/server.key /etc/howdah/tls/server.pem
}

# When its broker restarts, a worker moves to another broker, together with its job.
job_outlives_a_restart() {
    local id before
    in_machine systemd-run --quiet --unit other --setenv HOWDAH_DATABASE_URL="$inside" --setenv HOWDAH_LISTEN=127.0.0.1:7442 \
        --setenv HOWDAH_HTTP=127.0.0.1:7443 howdah serve
    in_machine env HOWDAH_HTTP=127.0.0.1:7443 howdah health --wait 30s >/dev/null || fail 'the other broker does not start'
    in_machine mkfifo /run/begun /run/end
    id=$(in_machine howdah enqueue held '')
    in_machine systemd-run --quiet --unit worker howdah --server http://127.0.0.1:7432,http://127.0.0.1:7442 work held \
        --exec 'echo >/run/begun; cat /run/end'
    in_machine timeout 30 cat /run/begun >/dev/null || fail "the worker has no job: $(in_machine journalctl --unit worker)"
    before=$(property MainPID)
    in_machine systemctl restart howdah
    ready 'it does not restart'
    [[ $(property MainPID) != "$before" ]] || fail 'it is the same process'
    logged '"message":"stopped"' || fail 'it ended before it had drained'
    ! logged 'did not reconnect elsewhere' || fail 'the worker did not go to the other broker'
    in_machine timeout 30 sh -c 'echo kept >/run/end'
    [[ $(in_machine howdah wait --json "$id") == *'"attempt":1,'*'"kept'* ]] || fail 'the job did not outlive the restart'
    in_machine systemctl stop worker other
    echo 'it restarted, and a job went on at another broker meanwhile'
}

broker_comes_back() {
    local before
    in_machine systemctl kill --signal KILL howdah
    within 30 restarted 1 || fail 'systemd does not start it again'
    ready 'it does not come back'
    before=$(property MainPID)
    # Installs the package again, as an upgrade does.
    in_machine dpkg --install /howdah.deb >/dev/null
    ready 'it does not start after an upgrade'
    [[ $(property MainPID) != "$before" ]] || fail 'an upgrade leaves the old program running'
    echo 'it came back after a crash, and after an upgrade'
}

bad_url_is_not_told() {
    # With an invalid URL the broker exits, and systemd restarts it until the URL is valid.
    set_url "postgres://howdah:$secret@/howdah?sslmode=perhaps"
    in_machine systemctl restart howdah
    within 30 restarted 2 || fail 'systemd does not try again'
    logged 'sslmode "perhaps" is unknown' || fail "the journal does not say what is wrong: $(journal | tail -n 5)"
    set_url "$inside"
    ready 'it does not start with a better URL'
    # The broker waits for an unavailable database, and can be stopped while it waits.
    set_url "postgres://howdah:$secret@127.0.0.1:1/howdah"
    in_machine systemctl restart howdah
    within 30 logged 'Connection refused' || fail "the journal does not say what is wrong: $(journal | tail -n 5)"
    is ActiveState active || fail 'it does not wait for Postgres'
    in_machine systemctl stop howdah
    is Result success || fail "it ended badly: $(property Result)"
    [[ $(in_machine journalctl --no-pager --output json) != *"$secret"* ]] || fail 'the password is in the journal'
    echo 'a bad URL is told without its password, and tried again'
}

package_is_purged() {
    set_url "$inside"
    in_machine systemctl start howdah
    ready 'it does not start again'
    in_machine dpkg --purge howdah >/dev/null 2>&1
    is ActiveState inactive || fail 'a purge leaves the broker running'
    is LoadState not-found || fail 'a purge leaves the unit'
    purged
}
