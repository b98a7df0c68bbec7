#!/usr/bin/env bash
# All tests of the Java client, from nothing: builds and tests the package with its sources and Javadoc, installs it into a
# repository in target/, and uses it there from an empty project. It needs a JDK 17 or later.
#
# HOWDAH_BIN names the program howdah (or it is on the PATH). What is made is below client/java/target; what Maven fetches is
# where Maven keeps it (~/.m2).
set -euo pipefail
cd "$(dirname "$0")"

echo '=== build, test, package'
./maven -B -q clean package "$@"
# The adapter must fit the client; howdah-conformance runs it.
conformance/prepare.sh

echo '=== use the package from an empty project'
repository=$PWD/target/repository
project=$PWD/target/empty-project
rm -rf "$repository" "$project"
mkdir -p "$project/src/main/java"
./maven -B -q org.apache.maven.plugins:maven-deploy-plugin:3.1.4:deploy-file "-Durl=file://$repository" -DpomFile=pom.xml \
    "-Dfile=$(echo target/howdah-client-*[0-9].jar)" "-Dsources=$(echo target/howdah-client-*-sources.jar)" \
    "-Djavadoc=$(echo target/howdah-client-*-javadoc.jar)"
# Not one of an earlier run.
rm -rf "$(./maven -B -q help:evaluate -Dexpression=settings.localRepository -DforceStdout)/dev/howdah/howdah-client"
cp package-test/pom.xml "$project/"
cp package-test/FirstJob.java "$project/src/main/java/"
./maven -B -q -f "$project/pom.xml" "-Drepository=file://$repository" compile exec:exec
