import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import type { ConnectRouter, HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Client, Code, HowdahError, type Logger, proto } from "howdah";
import { startBroker, type TestBroker } from "howdah/testing";

let broker: TestBroker;
let client: Client;

before(async () => {
  broker = await startBroker({ args: ["--stores", "2"] });
  client = await Client.connect(broker.server);
});

after(async () => {
  await client.close();
  await broker.stop();
});

/** Job ids begin with the number of their store: 0 for store1, 1 for store2. */
const storeOf = (id: bigint) => id / 10n ** 14n;

test("jobs go to the store that the client names", async () => {
  const [here, there] = [client.inStore("store1"), client.inStore("store2")];
  const [first, second] = [await here.enqueue("t"), await there.enqueue("t")];
  const producer = there.producer();
  const third = await producer.enqueue("t");
  await producer.close();
  const ids = [first.id, second.id, third.id];
  assert.deepEqual(ids.map(storeOf), [0n, 1n, 1n]);
  // A client for one store lists the jobs of that store; the original client lists the jobs of all stores.
  const listed = async (of: Client) => {
    const { jobs } = await of.jobs.listJobs({ taskType: "t", pageSize: 10 });
    return new Set(jobs.map(({ id }) => id));
  };
  assert.deepEqual(await listed(here), new Set([first.id]));
  assert.deepEqual(await listed(there), new Set([second.id, third.id]));
  assert.deepEqual(await listed(client), new Set(ids));
  // A worker gets jobs from all stores, unless its client is for one store.
  const worker = client.worker().handle("t", () => {});
  void worker.run();
  for await (const job of client.wait(ids, { timeout: 20_000 })) assert.ok(ids.includes(job.id));
  assert.equal((await worker.stop()).acked, 3);
});

test("middleware of a client is around the enqueues of those for its stores", async () => {
  const own = new Client(broker.server);
  const there = own.inStore("store2");
  own.use({
    enqueue: (jobs, next) => {
      for (const job of jobs) job.headers.tenant = "t1";
      return next();
    },
  });
  const { id } = await there.enqueue("headers");
  assert.equal((await there.getJob(id)).headers.tenant, "t1");
  await own.close();
});

/** Starts a fake broker that implements only these calls, and a client of it. */
async function served(
  routes: (router: ConnectRouter) => void,
  use: (client: Client) => Promise<void>,
  logger?: Logger,
) {
  const server = createServer(connectNodeAdapter({ routes }));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const servers = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const own = new Client({ servers, requestTimeout: 100_000, ...(logger && { logger }) });
  try {
    await use(own);
  } finally {
    await own.close();
    server.close();
  }
}

test("stores that an answer leaves out are logged", async () => {
  const warnings: unknown[][] = [];
  const nothing = () => {};
  const logger = { debug: nothing, info: nothing, warn: (...words: unknown[]) => warnings.push(words), error: nothing };
  const listJobs = (_: unknown, { responseHeader }: HandlerContext) => {
    responseHeader.set("howdah-unanswered-stores", "mail,news");
    return {};
  };
  await served(
    (router) => router.service(proto.JobService, { listJobs }),
    async (own) => void (await own.jobs.listJobs({ taskType: "t" })),
    logger,
  );
  assert.match(String(warnings[0]?.[0]), /these stores did not answer/);
  assert.deepEqual(
    warnings.map(([, of]) => of),
    [{ method: "ListJobs", stores: "mail,news" }],
  );
});

test("a pull may wait for as long as its caller does", async () => {
  let left: number | undefined;
  const pullJobs = (_: unknown, context: HandlerContext) => {
    left = context.timeoutMs();
    return {};
  };
  await served(
    (router) => router.service(proto.WorkerService, { pullJobs }),
    async (own) => void (await own.workers.pullJobs({ taskTypes: ["t"] })),
  );
  assert.ok(left !== undefined && left > 60_000, String(left));
});

test("a store that is not there is refused, with the names of those that are", async () => {
  await assert.rejects(client.inStore("post").enqueue("t"), (error: HowdahError) => {
    assert.deepEqual([error.code, error.field], [Code.InvalidArgument, "howdah-store"]);
    return error.message === 'howdah-store is "post"; this broker serves store1, store2';
  });
});

test("a store without a name is refused, because it would stand for all stores", () => {
  for (const name of [undefined, ""])
    assert.throws(
      () => client.inStore(name as string),
      (error: HowdahError) => error.field === "store",
    );
});

test("an invalid name of a store is refused at once", () => {
  for (const name of ["mäil", "a\nb"])
    assert.throws(
      () => client.inStore(name),
      (error: HowdahError) => {
        assert.deepEqual([error.code, error.field], [Code.InvalidArgument, "store"]);
        return error.message === `store is ${JSON.stringify(name)}: give the name of a store`;
      },
    );
});
