#!/usr/bin/env bash
# Starts a real single-node Kubernetes, applies deploy/kubernetes/*.yaml unchanged, and checks the behaviour of the brokers:
# `deploy/kubernetes/test.sh PROGRAM`, as root. Default program: target/dist/howdah.
#
# Kubernetes, etcd and CoreDNS are built from the Go module proxy, in the versions of cluster/go.mod, and cached in
# target/kubernetes, which takes a quarter of an hour on two cores. Therefore CI does not run this script, and only validates
# the manifests against schemas. Run it before a release, and after a change of the manifests. It requires Go, grpcurl, openssl,
# Postgres, and the Debian packages containerd, runc, containernetworking-plugins, catatonit, podman and iproute2. It runs in
# separate namespaces, and removes them at its end.
#
# This is NOT tested: NetworkPolicy (the bridge does not support it), KEDA itself, more than one node.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=deploy/common.sh
source deploy/common.sh
[[ $(id -u) == 0 ]] || fail 'a kubelet needs root'
export PATH=$PWD/target/tools/bin:$PATH
program=$(realpath "${1:-target/dist/howdah}")
built=$PWD/target/kubernetes cache=$PWD/target/deploy
readonly keda=2.21.0
# shellcheck source=deploy/kubernetes/cluster/start.sh
source deploy/kubernetes/cluster/start.sh
# shellcheck source=deploy/kubernetes/cluster/images.sh
source deploy/kubernetes/cluster/images.sh
# shellcheck source=deploy/docker/under-podman.sh
source deploy/docker/under-podman.sh

end() {
    remove_containers
    [[ -z ${holder:-} ]] || kill "$holder" 2>/dev/null || true
    # Remove the kubelet's cgroups.
    find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} \; 2>/dev/null || true
    rm -rf "$work"
}

if [[ ${HOWDAH_IN_NAMESPACE:-} != 1 ]]; then
    for needed in go grpcurl openssl containerd runc podman catatonit ip setpriv psql; do
        type -P "$needed" >/dev/null || missing "$needed"
    done
    say 'building Kubernetes'
    build_cluster
    work=$(mktemp -d)
    trap end EXIT
    chmod 755 "$work"
    children=()
    say 'images'
    make_images
    export work HOWDAH_IN_NAMESPACE=1
    # All processes of the test end together with the first process of the PID namespace.
    unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc -- "$0" "$program"
    exit
fi

# Mounts temporary file systems at fixed paths, so that sockets, mounts and logs stay within the namespace.
mkdir -p /var/lib/cni
for place in /run /var/lib/cni /var/log; do mount -t tmpfs none "$place"; done
# shellcheck source=deploy/kubernetes/rules.sh
source deploy/kubernetes/rules.sh
export KUBECONFIG=$work/kubeconfig
mkdir -p "$work/logs"
say 'cluster'
start_cluster
say 'brokers'
start_brokers
two_brokers_are_ready
jobs_run_while_brokers_are_replaced
jobs_run_when_a_broker_dies
only_one_broker_is_evicted_at_a_time
brokers_without_postgres_get_no_calls_and_are_not_restarted
a_new_certificate_is_served_without_a_restart
keda_is_answered
say 'Kubernetes runs what is in deploy/kubernetes'
