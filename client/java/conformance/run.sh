#!/usr/bin/env bash
# The adapter of the Java client, for `howdah-conformance --client client/java/conformance/run.sh`. prepare.sh builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
exec java -XX:TieredStopAtLevel=1 -Djava.util.logging.config.file=conformance/logging.properties \
    -cp "target/conformance:target/classes:$(cat target/test.classpath)" Adapter
