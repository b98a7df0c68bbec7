// Completes the build after tsc: marks dist/cjs as CommonJS in a package of ES modules, and copies the licences.
import { copyFileSync, writeFileSync } from "node:fs";

process.chdir(`${import.meta.dirname}/..`);
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) copyFileSync(`../../${name}`, name);
