// Starts a broker for the browser tests and fills it with jobs in every state.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const program = process.env.HOWDAH_BIN;

/** Starts `howdah`; returns its addresses and a function that stops it. */
async function ready(args, env = {}) {
  const broker = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, HOWDAH_LOG: "error", ...env } });
  const ended = once(broker, "exit");
  let found;
  for await (const line of createInterface({ input: broker.stdout })) {
    found = line.match(/^ready grpc=(\S+) http=(\S+)(?: postgres=(\S+))?/);
    if (found) break;
  }
  if (!found) throw new Error("the broker did not start");
  const [, grpc, http, postgres] = found;
  const stop = async () => {
    broker.kill("SIGTERM");
    await ended;
  };
  return { grpc: `http://${grpc}`, http: `http://${http}`, postgres, stop };
}

const ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];

/**
 * Starts a broker. Returns its HTTP URL and functions that run a command, start a worker, start another broker on the same database
 * with these options, and stop the broker.
 */
export async function start() {
  const broker = await ready(["dev", "--ephemeral", ...ports, "--name", "broker-1"]);
  const run = async (...args) => (await promisify(execFile)(program, ["--server", broker.grpc, ...args])).stdout;
  const another = (...options) => ready(["serve", ...ports, ...options], { HOWDAH_DATABASE_URL: broker.postgres });
  const work = (...args) => {
    const worker = spawn(program, ["--server", broker.grpc, "work", ...args], { stdio: "ignore" });
    const ended = once(worker, "exit");
    const stop = async () => {
      // The second signal makes the worker exit without waiting for its job.
      worker.kill("SIGTERM");
      worker.kill("SIGINT");
      await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 3_000))]);
      worker.kill("SIGKILL");
      await ended;
    };
    return { stop };
  };
  return { http: broker.http, run, work, another, stop: broker.stop };
}

/** Creates a token of Ann, who may read everything; returns its file and the token. */
export async function token() {
  const secret = (await promisify(execFile)(program, ["token", "generate"])).stdout.trim();
  const folder = await mkdtemp(join(tmpdir(), "howdah-page-"));
  const file = join(folder, "tokens");
  await writeFile(file, `${secret} ann read:*\n`);
  return { secret, file, remove: () => rm(folder, { recursive: true }) };
}

/** Fills the database: enqueues jobs, runs some, lets some fail, creates a schedule. */
export async function fill(run) {
  const enqueue = (type, payload, ...options) => run("enqueue", ...options, type, payload);
  const fails = ["--max-attempts", "1"];
  for (let n = 1; n <= 6; n += 1) {
    await enqueue("mail.send", JSON.stringify({ to: `customer${n}@example.com`, template: "welcome", order: 4000 + n }), "--key", `order ${4000 + n}`, "--header", "tenant=north", ...fails);
  }
  const error = "echo 'smtp: connect to mail.example.com:25: Connection refused' >&2; exit 1";
  await run("work", "mail.send", "--drain=now", "--exec", error);
  await enqueue("report.build", '{"month":"2026-10"}', "--max-attempts", "5", "--retry-initial-delay", "1h");
  await run("work", "report.build", "--drain=now", "--exec", "echo 'timeout after 30 s: SELECT sum(amount) FROM invoice' >&2; exit 1");
  for (let n = 1; n <= 9; n += 1) {
    await enqueue("mail.send", JSON.stringify({ to: `bob${n}@example.com` }));
  }
  await run("work", "mail.send", "thumbnail.make", "--drain=now", "--exec", "true");
  for (let n = 1; n <= 70; n += 1) {
    await enqueue("thumbnail.make", `{"image":${n}}`, "--priority", String(n % 3));
  }
  for (let n = 1; n <= 12; n += 1) {
    await enqueue("mail.send", JSON.stringify({ to: `ann${n}@example.com` }));
  }
  await enqueue("invoice.export", "no JSON, plain text", "--delay", "2h");
  await run("type", "set", "invoice.export", "--max-running", "2");
  await run("schedule", "create", "nightly-report", "report.build", "--cron", "30 2 * * MON-FRI", "--time-zone", "Europe/Berlin");
  await run("schedule", "create", "cleanup", "files.clean", "--every", "15m");
}
