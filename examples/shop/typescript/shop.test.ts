// Tests of the shop: npm test. The last one needs the program howdah, on the PATH or as HOWDAH_BIN.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, fromJsonBytes } from "howdah";
import { perform, RecordingClient, startBroker } from "howdah/testing";
import { confirm, confirmOrder, place, reserve, reserveItem } from "./jobs.js";

test("a handler runs without a broker", async () => {
  assert.equal((await perform(reserve, 2)).result, 6);
  assert.equal((await perform(reserve, 100, { attempt: 2 })).result, 300);
  assert.equal((await perform(reserve, 100, { attempt: 1 })).outcome, "retry");
});

test("an order is enqueued", async () => {
  const client = new RecordingClient();
  await place(client, { email: "ann@example.com", quantities: [2, 1] });
  client.assertEnqueued(reserveItem, 2, { maxAttempts: 5 });
  client.assertEnqueued(confirmOrder, "ann@example.com", { afterLocal: ["item 0", "item 1"] });
});

test("an order runs", async () => {
  const broker = await startBroker();
  const client = await Client.connect(broker.server);
  const worker = client.worker().handle(reserveItem, reserve).handle(confirmOrder, confirm);
  const running = worker.run();
  const id = await place(client, { email: "ann@example.com", quantities: [2, 1] });
  for await (const job of client.wait([id])) assert.equal(fromJsonBytes(job.result), "ann@example.com pays 9");
  await worker.stop();
  await running;
  await client.close();
  await broker.stop();
});
