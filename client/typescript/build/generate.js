// Generates the messages and services from /proto, and one module that exports all of them.
import { execFileSync } from "node:child_process";
import { readdirSync, writeFileSync } from "node:fs";

process.chdir(`${import.meta.dirname}/..`);
// Keep this version of buf equal to the one in /justfile.
execFileSync("npx", ["--yes", "@bufbuild/buf@1.75.0", "generate"], { stdio: "inherit" });
const files = readdirSync("src/gen", { recursive: true }).filter((name) => name.endsWith("_pb.ts"));
const lines = files.sort().map((name) => `export * from "./${name.replace(/\.ts$/, ".js")}";\n`);
writeFileSync("src/gen/index.ts", lines.join(""));
