# shellcheck shell=bash
# Checks of the brokers in Kubernetes: a part of deploy/kubernetes/test.sh, with the cluster of cluster/start.sh.
# shellcheck disable=SC2154  # set by test.sh

kubectl() { "$built/kubectl" "$@"; }
# Uses the producer's token, which may enqueue and read: the worker's own token may only work.
in_worker() { kubectl exec deploy/mail-worker -- /usr/bin/busybox env "HOWDAH_TOKEN=$producer_token" "$@"; }
brokers() { kubectl get pods --selector app.kubernetes.io/name=howdah --output "jsonpath={.items[*].$1}"; }
# Prints the addresses to which the Service sends clients.
ready_addresses() {
    kubectl get endpointslices --selector kubernetes.io/service-name=howdah \
        --output 'jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]}{"\n"}{end}' | grep -c .
}
ready_are() { [[ $(ready_addresses) == "$1" ]]; }
rolled_out() { kubectl rollout status "deployment/$1" --timeout "${2:-180s}" >/dev/null || fail_with_pods "$1 does not roll out"; }
fail_with_pods() {
    local pod
    kubectl get pods >&2
    kubectl get events --field-selector type!=Normal >&2
    for pod in $(kubectl get pods --output name); do
        echo "$pod" >&2
        kubectl logs "$pod" --previous --tail 20 >&2 2>/dev/null || kubectl logs "$pod" --tail 20 >&2 || true
    done
    fail "$1"
}
# tls_secret NAME FOLDER CERTIFICATE: creates or replaces a Secret from the folder's files.
tls_secret() {
    kubectl create secret generic "$1" --from-file "tls.crt=$2/$3.pem" --from-file "tls.key=$2/$3.key" --from-file "ca.crt=$2/ca.pem" \
        --dry-run=client --output yaml | kubectl apply --filename - >/dev/null
}

start_brokers() {
    local parts=$work/keda.yaml
    start_postgres
    authority "$work/tls"
    certificate "$work/tls" server /CN=broker DNS:howdah
    certificate "$work/tls" client /CN=mailer DNS:mailer
    producer_token=$("$program" token generate) scaler_token=$("$program" token generate) worker_token=$("$program" token generate)
    kubectl create secret generic howdah-tokens --from-literal "tokens=$producer_token mailer enqueue:email.* read:email.*
$scaler_token scaler read:email.send
$worker_token worker work:email.send" >/dev/null
    kubectl create secret generic howdah-keda-token --from-literal "token=$scaler_token" >/dev/null
    kubectl create secret generic mail-worker-token --from-literal "token=$worker_token" >/dev/null
    kubectl create secret generic howdah-database --from-literal "database-url=$url" >/dev/null
    tls_secret howdah-tls "$work/tls" server
    tls_secret howdah-keda-tls "$work/tls" client
    tls_secret mail-worker-tls "$work/tls" client
    kubectl apply --filename deploy/kubernetes/howdah.yaml
    rolled_out howdah
    # The API server validates the ScaledObject in the manifests with KEDA's definition.
    kubectl apply --server-side --filename "$built/keda.sh_scaledobjects.yaml" >/dev/null
    kubectl wait --for condition=Established crd/scaledobjects.keda.sh --timeout 60s >/dev/null
    sed 's/image: mail-worker:1/image: howdah-worker:1/' deploy/kubernetes/keda.yaml >"$parts"
    kubectl apply --filename "$parts"
}

two_brokers_are_ready() {
    rolled_out mail-worker
    ready_are 2 || fail "the Service has $(ready_addresses) addresses"
    [[ $(kubectl get pods --output 'jsonpath={.items[*].status.containerStatuses[*].restartCount}') =~ ^[0\ ]+$ ]] ||
        fail_with_pods 'a container was started again'
    in_worker howdah enqueue email.send hello >"$work/id"
    [[ $(in_worker howdah wait "$(cat "$work/id")") == *HELLO* ]] || fail 'the job has no result'
    echo 'two brokers are ready, the Service names both, and a job runs'
}

# many JOBS: enqueues JOBS jobs with one command in the background, at most 50 per second.
many() {
    in_worker sh -c "seq $1 | while read -r n; do echo \$n; usleep 20000; done | howdah enqueue email.send --lines" >"$work/ids" 2>"$work/many" &
    producer=$!
}
# many_are_done JOBS: checks that all jobs have succeeded, possibly in a later attempt if a broker died.
many_are_done() {
    wait "$producer" || fail "the producer ended with status $?: $(cat "$work/many")"
    [[ $(sort -u "$work/ids" | grep -c .) == "$1" ]] || fail "$(grep -c . "$work/ids") ids of $1 jobs"
    # shellcheck disable=SC2046  # one argument an id
    in_worker howdah wait --timeout 120s $(cat "$work/ids") >"$work/results" || fail "not all jobs succeeded: $(tail -n 3 "$work/results")"
}

jobs_run_while_brokers_are_replaced() {
    many 500
    kubectl rollout restart deployment/howdah >/dev/null
    rolled_out howdah
    many_are_done 500
    [[ $(in_database "SELECT count(*) FROM howdah.history WHERE attempt > 1") == 0 ]] || fail 'a job ran twice'
    echo 'both brokers were replaced under load: each job ran once'
}

jobs_run_when_a_broker_dies() {
    local first
    first=$(brokers metadata.name | cut -d' ' -f1)
    many 500
    kubectl delete pod "$first" --force --grace-period 0 >/dev/null 2>&1
    many_are_done 500
    rolled_out howdah
    ready_are 2 || within 60 ready_are 2 || fail_with_pods 'it is not replaced'
    echo 'a broker died under load: each job ran'
}

only_one_broker_is_evicted_at_a_time() {
    local names
    read -ra names <<<"$(brokers metadata.name)"
    evict "${names[0]}" || fail "the first is not evicted: $(cat "$work/evicted")"
    ! evict "${names[1]}" || fail 'the second is evicted with the first'
    grep -q 'disruption budget' "$work/evicted" || fail "$(cat "$work/evicted")"
    rolled_out howdah
    within 60 ready_are 2 || fail_with_pods 'it is not replaced'
    echo 'one broker was evicted, and the other only when there are two again'
}
evict() {
    printf '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"%s","namespace":"default"}}' "$1" >"$work/eviction"
    kubectl create --raw "/api/v1/namespaces/default/pods/$1/eviction" --filename "$work/eviction" >"$work/evicted" 2>&1
}

brokers_without_postgres_get_no_calls_and_are_not_restarted() {
    local before
    before=$(brokers 'status.containerStatuses[0].restartCount')
    stop_postgres
    within 60 ready_are 0 || fail_with_pods 'brokers without Postgres are ready'
    # Wait longer than the liveness probe needs to stop a failing container: three times 10 s.
    sleep 40
    run_postgres
    within 60 ready_are 2 || fail_with_pods 'they are not ready again'
    [[ $(brokers 'status.containerStatuses[0].restartCount') == "$before" ]] || fail_with_pods 'they were started again'
    in_worker howdah enqueue email.send again >"$work/id"
    [[ $(in_worker howdah wait "$(cat "$work/id")") == *AGAIN* ]] || fail 'the job has no result'
    echo 'without Postgres the brokers are not ready, are left running, and go on when it is back'
}

a_new_certificate_is_served_without_a_restart() {
    local address before
    before=$(brokers 'status.containerStatuses[0].containerID')
    address=$(brokers status.podIP | cut -d' ' -f1)
    certificate "$work/tls" server /CN=renewed DNS:howdah
    tls_secret howdah-tls "$work/tls" server
    within 150 serves_renewed "$address" || fail 'the new certificate is not served'
    [[ $(brokers 'status.containerStatuses[0].containerID') == "$before" ]] || fail_with_pods 'a broker was started again'
    echo 'a Secret with a new certificate is served without a restart'
}
serves_renewed() {
    openssl s_client -connect "$1:7433" -servername howdah </dev/null 2>/dev/null | openssl x509 -noout -subject | grep renewed
}

keda_is_answered() {
    local address metric
    rolled_out howdah-keda
    address=$(kubectl get service howdah-keda --output 'jsonpath={.spec.ports[0].port}')
    [[ $address == 7434 ]] || fail "the scaler is at port $address"
    address=$(kubectl get pods --selector app=howdah-keda --output 'jsonpath={.items[0].status.podIP}'):7434
    metric=$(grpcurl -plaintext -import-path cli/proto -proto externalscaler.proto \
        -d '{"name":"mail-worker","namespace":"default","scalerMetadata":{"taskType":"email.send","jobsPerReplica":"10","drainSeconds":"60"}}' \
        "$address" externalscaler.ExternalScaler/GetMetricSpec) || fail "the scaler: $metric"
    grep -q '"metricName": "howdah-jobs"' <<<"$metric" || fail "the scaler says $metric"
    echo 'the scaler is ready and answers'
}
