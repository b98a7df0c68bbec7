// Enqueues a thumbnail job for each PNG file of a directory, and prints the results: node producer.js DIRECTORY OUTPUT_DIRECTORY
// @ts-check
import { mkdir, readdir } from "node:fs/promises";
import { basename, resolve } from "node:path";
import { Client, fromJsonBytes, newJob, proto } from "howdah";

const [from = ".", to = "."] = process.argv.slice(2);
await mkdir(to, { recursive: true });
const files = (await readdir(from)).filter((name) => name.endsWith(".png"));
const jobs = files.map((name) => {
  const source = resolve(from, name);
  return newJob("thumbnail.make", { source, target: resolve(to, name), width: 128 }, { key: source });
});

const client = await Client.connect();
const enqueued = await client.enqueueAll(jobs);
for await (const job of client.wait(
  enqueued.map(({ id }) => id),
  { timeout: "10m" },
)) {
  const { source } = fromJsonBytes(job.payload);
  if (job.state === proto.JobState.SUCCEEDED) {
    const { width, height } = fromJsonBytes(job.result);
    console.log(`${basename(source)} ${width}x${height}`);
  } else {
    console.log(`${basename(source)} ${proto.JobState[job.state]}: ${job.failures.at(-1)?.error}`);
  }
}
await client.close();
