import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client, proto } from "howdah";
import { startBroker, type TestBroker } from "howdah/testing";

const root = join(import.meta.dirname, "../..");
const project = mkdtempSync(join(tmpdir(), "howdah-project-"));
let broker: TestBroker;

/** Runs a program in the project to its end, and returns its output. */
const run = (program: string, ...args: string[]) =>
  execFileSync(program, args, { cwd: project, env: environment(), encoding: "utf8" });
const environment = () => ({ ...process.env, HOWDAH_SERVER: broker.server });
const write = (name: string, text: string) => writeFileSync(join(project, name), text);

/** The TypeScript blocks of a page, in order, without fragments. */
const blocks = (page: string) =>
  [...readFileSync(page, "utf8").matchAll(/^(?:```|<!-- )ts\n(.*?)^(?:```|-->)$/gms)].map((match) => match[1] ?? "");
const compile = (...names: string[]) =>
  run("npx", "tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "node", ...names);

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

const concepts = join(root, "../../docs/concepts");
const pages = readdirSync(concepts)
  .filter((name) => readFileSync(join(concepts, name), "utf8").includes("```ts\n"))
  .map((name) => name.replace(".md", ""));

/**
 * Returns the blocks of a page as one program, with a client and a worker given. Lines in a comment `<!-- ts` … `-->` are
 * hidden from readers and run as well. A worker starts after the block that adds its handlers. Each handler gets another job.
 */
function pageProgram(page: string): string {
  const handled = blocks(join(concepts, `${page}.md`)).map((block) =>
    block.includes("worker.handle(")
      ? `${block} runs.push(worker.run({ signal: stop.signal })); worker = client.worker();`
      : block,
  );
  const types = [...handled.join("").matchAll(/worker\.handle\("([^"]+)"/g)].map((match) => match[1]);
  return `import { Client, FatalError, fromJsonBytes, newJob, RetryError } from "howdah";
    const client = await Client.connect();
    const stop = new AbortController();
    const runs: Promise<unknown>[] = [];
    let worker = client.worker();
    ${handled.join("\n")}
    for (const taskType of ${JSON.stringify(types)}) {
      const { id } = await client.enqueue(taskType, "1", { maxAttempts: 1 });
      for await (const _ of client.wait([id]));
      for (let left = 1n; left > 0n; ) {
        const counts = (await client.taskTypes.listTaskTypes({ taskType })).taskTypes[0]?.counts;
        left = counts ? counts.ready + counts.waiting + counts.leased : 0n;
      }
      const { groups } = await client.jobs.listErrorGroups({ taskType });
      for (const group of groups) console.log("failed:", group.errorGroup.split(" at ")[0]);
    }
    stop.abort();
    await Promise.all(runs);
    await client.close();`;
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
  const tools = ["typescript", "@types/node", "@opentelemetry/api"].map((name) => `${name}@${devDependencies[name]}`);
  run("npm", "install", "--no-audit", "--no-fund", tarball, ...tools);
  for (const page of pages) write(`${page}.ts`, pageProgram(page));
  compile(...pages.map((page) => `${page}.ts`));
});

after(() => broker.stop());

test("the package has its licences", () => {
  for (const name of ["LICENSE-APACHE", "LICENSE-MIT"])
    assert.ok(readFileSync(join(project, "node_modules/howdah", name), "utf8").length > 500);
});

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
  const programs = blocks(join(root, "README.md"));
  const names = ["tasks.ts", "worker.ts", "producer.ts", "operate.ts"];
  assert.equal(programs.length, names.length);
  assert.ok(programs.slice(0, 3).join("").split("\n").length <= 40, "at most 40 lines");
  for (const [index, name] of names.entries()) write(name, programs[index] ?? "");
  compile(...names);
  const worker = await start("worker.js", /(?:)/);
  assert.equal(run("node", "producer.js"), "SUCCEEDED { sent: true }\n");
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "exit"), [0, null]);
  assert.equal(worker.text(), "attempt 1: Welcome to ann@example.com\n");
  assert.match(run("node", "operate.js"), /^READY No worker takes jobs of the type report\.make/);
});

test("the fragments of the README compile", () => {
  const fragments = [...readFileSync(join(root, "README.md"), "utf8").matchAll(/^```ts fragment\n(.*?)^```$/gms)];
  assert.ok(fragments.length > 0);
  for (const [index, [, fragment = ""]] of fragments.entries()) {
    const imports = fragment.split("\n").filter((line) => line.startsWith("import "));
    const rest = fragment.split("\n").filter((line) => !line.startsWith("import "));
    write(
      `fragment${index}.ts`,
      `import assert from "node:assert/strict";
      import { Client, type Enqueuer, type Handler, newJob } from "howdah";
      import { sendEmail } from "./tasks.js";
      ${imports.join("\n")}
      declare const client: Client, lines: string[], handler: Handler<{ to: string }>;
      declare const payload: { to: string; subject: string };
      declare function signUp(client: Enqueuer, to: string): Promise<void>;
      export async function fragment() { ${rest.join("\n")} }`,
    );
  }
  write("tasks.ts", blocks(join(root, "README.md"))[0] ?? "");
  compile("--noEmit", ...fragments.map((_, index) => `fragment${index}.ts`));
});

test("the worker of the repository's README runs as written", async () => {
  const [block, ...others] = blocks(join(root, "../../README.md"));
  assert.deepEqual(others, []);
  write("readme.ts", block ?? "");
  compile("readme.ts");
  const worker = await start("readme.js", /(?:)/);
  const client = await Client.connect(broker.server);
  const { id } = await client.enqueue("email.send", { to: "ann@example.com" });
  for await (const job of client.wait([id])) assert.equal(job.state, proto.JobState.SUCCEEDED);
  await client.close();
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "exit"), [0, null]);
  assert.equal(worker.text(), "to ann@example.com, attempt 1\n");
});

for (const page of pages) {
  test(`the examples of docs/concepts/${page}.md run as written`, () => {
    const output = run("node", `${page}.js`);
    // A page shows each error that its handlers throw.
    const text = readFileSync(join(concepts, `${page}.md`), "utf8");
    for (const [, error = ""] of output.matchAll(/^failed: (?:\w+: )?(.*)$/gm)) assert.ok(text.includes(error), error);
  });
}

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
