# shellcheck shell=bash
# A single-node Kubernetes within process, mount and network namespaces: a part of deploy/kubernetes/test.sh, which defines `say`,
# `fail`, `within` and the variables. Its files are below $work; its programs are cached in $built.
# shellcheck disable=SC2154  # set by test.sh

# Address of the node, and the pod network, which is a bridge. The test has no other network.
readonly node=10.244.0.1 pods=10.244.0.0/24

build_cluster() {
    local module=$PWD/deploy/kubernetes/cluster part source
    # `go build` relinks even without changes, which takes minutes for all programs.
    ! cat "$module/go.sum" "$module/coredns/go.sum" 2>/dev/null | cmp --silent - "$built/made" || return 0
    mkdir -p "$built"
    for part in ./etcd k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kubectl}; do
        (cd "$module" && go build -mod=readonly -ldflags '-s -w' -o "$built/" "$part")
    done
    (cd "$module/coredns" && go build -mod=readonly -ldflags '-s -w' -o "$built/" .)
    # Copies KEDA's definition of the resource ScaledObject.
    source=$(cd "$module" && go mod download -json "github.com/kedacore/keda/v2@v$keda" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    cp --no-preserve=mode "$source/config/crd/bases/keda.sh_scaledobjects.yaml" "$built/"
    cat "$module/go.sum" "$module/coredns/go.sum" >"$built/made"
}

# begins NAME COMMAND...: starts a program in the background, and writes its output to logs/NAME.
begins() {
    "${@:2}" >"$work/logs/$1" 2>&1 &
}

network() {
    ip link set lo up
    ip link add pods type bridge
    ip address add "$node/24" dev pods
    ip link set pods up
    # The API server needs a route to find its own address.
    ip route add default via "$node"
    sysctl -q net.ipv4.ip_forward=1
}

control_plane() {
    local keys=$work/keys
    authority "$keys"
    certificate "$keys" server /CN=server "DNS:localhost,IP:127.0.0.1,IP:$node,IP:10.96.0.1"
    certificate "$keys" admin /O=system:masters/CN=admin DNS:admin
    openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
    begins etcd "$built/etcd" --data-dir "$work/etcd" --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
    begins apiserver "$built/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --service-cluster-ip-range 10.96.0.0/16 \
        --tls-cert-file "$keys/server.pem" --tls-private-key-file "$keys/server.key" --client-ca-file "$keys/ca.pem" \
        --service-account-key-file "$keys/accounts.key" --service-account-signing-key-file "$keys/accounts.key" \
        --service-account-issuer https://localhost --authorization-mode RBAC --cert-dir "$work/apiserver" \
        --kubelet-client-certificate "$keys/admin.pem" --kubelet-client-key "$keys/admin.key" \
        --kubelet-certificate-authority "$keys/ca.pem" --advertise-address "$node" \
        --kubelet-preferred-address-types InternalIP
    "$built/kubectl" config set-cluster test --server https://127.0.0.1:6443 --certificate-authority "$keys/ca.pem" >/dev/null
    "$built/kubectl" config set-credentials admin --client-certificate "$keys/admin.pem" --client-key "$keys/admin.key" >/dev/null
    "$built/kubectl" config set-context test --cluster test --user admin >/dev/null
    "$built/kubectl" config use-context test >/dev/null
    within 120 "$built/kubectl" get --raw /readyz || fail "no API server: $(tail -n 20 "$work/logs/apiserver")"
    begins controllers "$built/kube-controller-manager" --kubeconfig "$KUBECONFIG" --leader-elect=false \
        --service-account-private-key-file "$keys/accounts.key" --root-ca-file "$keys/ca.pem"
    begins scheduler "$built/kube-scheduler" --kubeconfig "$KUBECONFIG" --leader-elect=false --cert-dir "$work/scheduler"
    printf '.:53 {\n bind %s\n errors\n kubernetes cluster.local {\n  kubeconfig %s\n }\n}\n' "$node" "$KUBECONFIG" >"$work/Corefile"
    begins dns "$built/coredns" -conf "$work/Corefile"
}

containers() {
    mkdir -p "$work/cni" "$work/containerd"
    cat >"$work/cni/pods.conflist" <<CNI
{ "cniVersion": "1.0.0", "name": "pods", "plugins": [ { "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
  "ipam": { "type": "host-local", "dataDir": "$work/cni/addresses", "ranges": [[{ "subnet": "$pods" }]],
  "routes": [{ "dst": "0.0.0.0/0" }] } } ] }
CNI
    cat >"$work/containerd.toml" <<TOML
version = 2
root = "$work/containerd/root"
state = "$work/containerd/state"
[grpc]
address = "$work/containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "howdah.test/pause:1"
# Not every root user may lower the OOM score.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$work/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
TOML
    begins containerd containerd --config "$work/containerd.toml"
    within 60 ctr --address "$work/containerd/socket" version || fail "no containerd: $(tail "$work/logs/containerd")"
}

kubelet() {
    local keys=$work/keys
    : >"$work/resolv.conf"
    cat >"$work/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $node
authentication: { anonymous: { enabled: false }, x509: { clientCAFile: $keys/ca.pem } }
authorization: { mode: Webhook }
tlsCertFile: $keys/server.pem
tlsPrivateKeyFile: $keys/server.key
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [$node]
clusterDomain: cluster.local
resolvConf: $work/resolv.conf
podLogsDir: $work/pods
volumePluginDir: $work/plugins
containerRuntimeEndpoint: unix://$work/containerd/socket
# Lets the kubelet propagate changed Secrets within seconds.
syncFrequency: 5s
evictionHard: { memory.available: 1Mi }
YAML
    mkdir -p "$work/pods" "$work/plugins"
    begins kubelet "$built/kubelet" --config "$work/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir "$work/kubelet" \
        --hostname-override node --node-ip "$node"
    within 120 "$built/kubectl" wait --for condition=Ready node/node --timeout 5s ||
        fail "the node is not ready: $(tail -n 20 "$work/logs/kubelet")"
}

start_cluster() {
    network
    control_plane
    containers
    load_images
    kubelet
}
