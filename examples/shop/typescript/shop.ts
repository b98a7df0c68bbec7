// Takes orders over HTTP and runs their jobs, until SIGTERM or Ctrl-C: npm start
import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import { Client, HowdahError, newJob } from "howdah";
import { confirm, confirmOrder, type Order, place, reserve, reserveItem } from "./jobs.js";

const client = await Client.connect(); // to the broker at HOWDAH_SERVER, or else to the one on this machine

// Every start applies the schedule, which replaces the one of an earlier start.
const job = newJob(reserveItem, 10);
await client.applySchedule("shelf.nightly", job, { cron: "0 3 * * *", timeZone: "Europe/Berlin" });

const server = createServer(async (request, response) => {
  if (request.method !== "POST" || request.url !== "/orders") return response.writeHead(404).end();
  try {
    const order = (await json(request)) as Order;
    response.writeHead(202).end(`${await place(client, order)}\n`);
  } catch (error) {
    response.writeHead(error instanceof HowdahError ? 503 : 400).end(`${error}\n`);
  }
}).listen(Number(process.env.PORT ?? 8080), "127.0.0.1");

const worker = client
  .worker({ concurrency: 8 }) // at most 8 jobs at once, of all task types together
  .handle(reserveItem, reserve)
  .handle(confirmOrder, confirm);
await worker.run({ stopOn: ["SIGTERM", "SIGINT"] }); // ends after a signal, when the running jobs have ended
server.close();
await client.close();
