// A broker of its own, with some jobs of every kind.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const program = process.env.HOWDAH_BIN;

/** Starts a broker; returns where it serves HTTP, a function that runs a command, and one that stops it. */
export async function start() {
  const options = ["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--name", "broker-1"];
  const broker = spawn(program, options, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, HOWDAH_LOG: "warn" } });
  const ended = once(broker, "exit");
  let ready;
  for await (const line of createInterface({ input: broker.stdout })) {
    ready = line.match(/^ready grpc=(\S+) http=(\S+)/);
    if (ready) break;
  }
  if (!ready) throw new Error("the broker did not start");
  const server = `http://${ready[1]}`;
  const run = async (...args) => (await promisify(execFile)(program, ["--server", server, ...args])).stdout;
  const stop = async () => {
    broker.kill("SIGTERM");
    await ended;
  };
  return { http: `http://${ready[2]}`, run, stop };
}

/** Enqueues, works, fails, schedules. */
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
