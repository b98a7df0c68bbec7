import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { startBroker, type TestBroker } from "howdah/testing";

const root = join(import.meta.dirname, "../..");
const project = mkdtempSync(join(tmpdir(), "howdah-project-"));
let broker: TestBroker;

/** Runs a program in the project to its end, and returns its output. */
const run = (program: string, ...args: string[]) =>
  execFileSync(program, args, { cwd: project, env: environment(), encoding: "utf8" });
const environment = () => ({ ...process.env, HOWDAH_SERVER: broker.server });
const write = (name: string, text: string) => writeFileSync(join(project, name), text);

/** Starts a program, and waits until its output matches `line`. */
async function start(name: string, line: RegExp): Promise<ChildProcess & { text: () => string }> {
  const child = spawn("node", [name], { cwd: project, env: environment(), stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  await new Promise<void>((resolve) => {
    if (line.source === "(?:)") resolve();
    child.stdout.on("data", (data) => {
      text += String(data);
      if (line.test(text)) resolve();
    });
  });
  return Object.assign(child, { text: () => text });
}

before(async () => {
  broker = await startBroker();
  mkdirSync(join(root, "target/package"), { recursive: true });
  const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--pack-destination", "target/package"], {
    cwd: root,
  });
  const tarball = join(root, "target/package", packed.toString().trim().split("\n").at(-1) ?? "");
  write("package.json", '{ "name": "empty", "private": true, "type": "module" }\n');
  const { devDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
    devDependencies: Record<string, string>;
  };
  const tools = ["typescript", "@types/node"].map((name) => `${name}@${devDependencies[name]}`);
  run("npm", "install", "--no-audit", "--no-fund", tarball, ...tools);
});

after(() => broker.stop());

test("the package is used from an ES module, from CommonJS, and from TypeScript", () => {
  const used = `const client = await Client.connect();
    const { id } = await client.enqueue("from.the.package", { n: 1 });
    console.log(typeof id, (await client.getJob(id)).taskType);
    await client.close();`;
  write("module.mjs", `import { Client } from "howdah"; import "howdah/testing"; ${used}`);
  write("common.cjs", `const { Client } = require("howdah"); require("howdah/testing"); (async () => { ${used} })();`);
  for (const name of ["module.mjs", "common.cjs"]) assert.equal(run("node", name), "bigint from.the.package\n");
  write("common.cts", 'import { Client } from "howdah";\nexport const make = (): Client => new Client();\n');
  const es2022 = ["--strict", "--module", "nodenext", "--target", "es2022", "--types", "node"];
  run("npx", "tsc", ...es2022, "--noEmit", "common.cts");
});

test("the programs of the README run as written", async () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const blocks = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map((match) => match[1] ?? "");
  const names = ["tasks.ts", "worker.ts", "producer.ts", "operate.ts"];
  assert.equal(blocks.length, names.length);
  assert.ok(blocks.slice(0, 3).join("").split("\n").length <= 40, "at most 40 lines");
  for (const [index, name] of names.entries()) write(name, blocks[index] ?? "");
  run("npx", "tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "node", ...names);
  const worker = await start("worker.js", /(?:)/);
  assert.equal(run("node", "producer.js"), "SUCCEEDED { sent: true }\n");
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "exit"), [0, null]);
  assert.equal(worker.text(), "attempt 1: Welcome to ann@example.com\n");
  assert.match(run("node", "operate.js"), /^READY No worker takes jobs of the type report\.make/);
});

test("the thumbnails of the example are made", async () => {
  const example = join(root, "../../examples/thumbnails/typescript");
  for (const name of ["producer.js", "worker.js"]) {
    const text = readFileSync(join(example, name), "utf8");
    assert.ok(text.split("\n").length <= 41, "at most 40 lines");
    write(name, text);
  }
  const { dependencies } = JSON.parse(readFileSync(join(example, "package.json"), "utf8")) as {
    dependencies: Record<string, string>;
  };
  run("npm", "install", "--no-audit", "--no-fund", `sharp@${dependencies.sharp}`);
  write(
    "images.mjs",
    `import sharp from "sharp"; import { mkdirSync, writeFileSync } from "node:fs";
    mkdirSync("in"); mkdirSync("out");
    for (const [name, width, height] of [["a", 512, 256], ["b", 300, 300]])
      await sharp({ create: { width, height, channels: 3, background: "red" } }).png().toFile(\`in/\${name}.png\`);
    writeFileSync("in/c.png", "no image");`,
  );
  run("node", "images.mjs");
  const worker = await start("worker.js", /(?:)/);
  const lines = run("node", "producer.js", "in", "out").trim().split("\n");
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "exit"), [0, null]);
  assert.deepEqual(lines.sort(), [
    "a.png 128x64",
    "b.png 128x128",
    "c.png DEAD: Input buffer contains unsupported image format",
  ]);
});
