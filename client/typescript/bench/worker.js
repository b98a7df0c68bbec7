// A worker whose handler does nothing: howdah bench client --client 'node client/typescript/bench/worker.js'
import { bytesTask, Client } from "howdah";

const { HOWDAH_BENCH_TYPE: type = "bench", HOWDAH_BENCH_CONCURRENCY: concurrency = "100" } = process.env;
const client = await Client.connect();
const worker = client.worker({ concurrency: Number(concurrency) }).handle(bytesTask(type), () => {});
await worker.run({ stopOn: ["SIGTERM", "SIGINT"] });
await client.close();
