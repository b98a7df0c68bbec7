#!/usr/bin/env bash
# Builds the Java client and its adapter for the conformance suite.
set -euo pipefail
cd "$(dirname "$0")/.."
./maven -B -q compile dependency:build-classpath -Dmdep.includeScope=test -Dmdep.outputFile=target/test.classpath
mkdir -p target/conformance
javac -nowarn -d target/conformance -cp "target/classes:$(cat target/test.classpath)" conformance/Adapter.java
