import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Client, fromJsonBytes, type Job, newJob, proto } from "howdah";
import { perform, startBroker, type TestBroker } from "howdah/testing";

let broker: TestBroker;
let client: Client;

before(async () => {
  broker = await startBroker();
  client = await Client.connect(broker.server);
});

after(async () => {
  await client.close();
  await broker.stop();
});

/** Runs parts with results of these sizes and a job after them. Returns the sizes of the results that the job gets. */
async function joined(type: string, sizes: number[]): Promise<unknown> {
  const join = async (_: unknown, job: Job) => {
    const seen: number[] = [];
    for await (const { state, result } of job.results()) {
      assert.equal(state, proto.JobState.SUCCEEDED);
      seen.push(result.length);
    }
    return seen;
  };
  const worker = client
    .worker()
    .handle<number>(`${type}.part`, (size) => new Uint8Array(size))
    .handle(`${type}.join`, join);
  const running = worker.run();
  const parts = sizes.map((size, n) => newJob(`${type}.part`, size, { localName: `part ${n}` }));
  const last = newJob(`${type}.join`, undefined, { afterLocal: parts.map(({ localName }) => localName) });
  const enqueued = await client.enqueueAll([...parts, last]);
  let result: unknown;
  for await (const job of client.wait([enqueued.at(-1)!.id], { timeout: 20_000 })) result = fromJsonBytes(job.result);
  await worker.stop();
  await running;
  return result;
}

test("a job gets the results of its dependencies in order", async () => {
  assert.deepEqual(await joined("small", [3, 0, 5]), [3, 0, 5]);
});

test("results that did not come with the job are fetched, page by page", async () => {
  const sizes = [3, 70_000, 5, 900_000, 900_000, 900_000, 900_000, 1];
  assert.deepEqual(await joined("large", sizes), sizes);
});

test("a handler gets the results that a test gives", async () => {
  const given = [7n, 8n].map((id) => create(proto.DependencyResultSchema, { id }));
  const ids = async (_: unknown, job: Job) => {
    const seen: number[] = [];
    for await (const { id } of job.results()) seen.push(Number(id));
    return seen;
  };
  assert.deepEqual((await perform(ids, undefined, { after: given })).result, [7, 8]);
});
