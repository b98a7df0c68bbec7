#!/usr/bin/env bash
# Starts the adapter of the Java client, which prepare.sh has built, for `howdah-conformance --client
# client/java/conformance/run.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec java -XX:TieredStopAtLevel=1 -Djava.util.logging.config.file=conformance/logging.properties \
    -cp "target/conformance:target/classes:$(cat target/test.classpath)" Adapter
