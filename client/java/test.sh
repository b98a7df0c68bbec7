#!/usr/bin/env bash
# Runs all tests of the Java client from a clean build. Builds and tests the package with its sources and Javadoc, deploys it to a
# repository in target/, and uses it from an empty project. Requires JDK 17 or later.
#
# HOWDAH_BIN is the program howdah, by default from the PATH. Build output is stored below client/java/target, Maven's downloads
# in its local repository (~/.m2).
set -euo pipefail
cd "$(dirname "$0")"

echo '=== build, test, package'
./maven -B -q clean package "$@"
# Only compiles the conformance adapter, to check that it compiles with the client. howdah-conformance runs the adapter.
conformance/prepare.sh

echo '=== use the package from an empty project'
repository=$PWD/target/repository
project=$PWD/target/empty-project
rm -rf "$repository" "$project"
mkdir -p "$project/src/main/java"
./maven -B -q org.apache.maven.plugins:maven-deploy-plugin:3.1.4:deploy-file "-Durl=file://$repository" -DpomFile=pom.xml \
    "-Dfile=$(echo target/howdah-client-*[0-9].jar)" "-Dsources=$(echo target/howdah-client-*-sources.jar)" \
    "-Djavadoc=$(echo target/howdah-client-*-javadoc.jar)"
# Removes the package of an earlier run from the local repository.
rm -rf "$(./maven -B -q help:evaluate -Dexpression=settings.localRepository -DforceStdout)/dev/howdah/howdah-client"
cp package-test/pom.xml "$project/"
cp package-test/FirstJob.java "$project/src/main/java/"
./maven -B -q -f "$project/pom.xml" "-Drepository=file://$repository" compile exec:exec
