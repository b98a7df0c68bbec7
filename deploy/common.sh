# shellcheck shell=bash
# Functions shared by the package tests.

say() { printf '\n--- %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
missing() { echo "MISSING: $*" >&2; exit 77; }

# within SECONDS COMMAND...: waits until the command succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}

# authority FOLDER: creates a certificate authority, ca.key and ca.pem.
authority() {
    mkdir -p "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj '/CN=test' -keyout "$1/ca.key" \
        -out "$1/ca.pem" 2>/dev/null
}
# certificate FOLDER NAME SUBJECT ADDRESSES: creates NAME.key and NAME.pem, signed by the folder's authority.
certificate() {
    openssl req -x509 -CA "$1/ca.pem" -CAkey "$1/ca.key" -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "$3" \
        -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=$4" -keyout "$1/$2.key" -out "$1/$2.pem" 2>/dev/null
}
