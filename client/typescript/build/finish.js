// What tsc does not do: the package is an ES module, and this part of it is not; and it carries its licences.
import { copyFileSync, writeFileSync } from "node:fs";

process.chdir(`${import.meta.dirname}/..`);
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) copyFileSync(`../../${name}`, name);
