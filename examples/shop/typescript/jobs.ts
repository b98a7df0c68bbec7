// The jobs of the shop.
import { type Enqueuer, fromJsonBytes, type Job, jsonTask, newJob } from "howdah";

export type Order = { email: string; quantities: number[] };

// A task binds the name of a task type to the type of its payload.
export const reserveItem = jsonTask<number>("item.reserve");
export const confirmOrder = jsonTask<string>("order.confirm");

export function reserve(quantity: number, job: Job): number {
  // Stands for a warehouse that does not always answer.
  if (quantity >= 100 && job.attempt === 1) throw new Error("the warehouse does not answer"); // the job is retried
  return quantity * 3; // the price
}

export async function confirm(email: string, job: Job): Promise<string> {
  let total = 0;
  for await (const item of job.results()) total += fromJsonBytes<number>(item.result);
  return `${email} pays ${total}`;
}

/** Enqueues a job for each item, and a job that runs after them and gets their results. Returns the id of the last job. */
export async function place(client: Enqueuer, { email, quantities }: Order): Promise<bigint> {
  const retries = { maxAttempts: 5, retryPolicy: { initialDelay: "1s" } };
  const items = quantities.map((n, i) => newJob(reserveItem, n, { localName: `item ${i}`, ...retries }));
  const last = newJob(confirmOrder, email, { afterLocal: items.map(({ localName }) => localName) });
  const enqueued = await client.enqueueAll([...items, last]); // then all jobs are committed
  return enqueued[items.length].id;
}
