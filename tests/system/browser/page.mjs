// The operator page in a real browser. Each step has a name; the first failing step ends the run.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { chromium } from "playwright-core";
import { fill, start } from "./broker.mjs";
import { changes } from "./changes.mjs";
import { doors } from "./doors.mjs";
import { jobs } from "./jobs.mjs";
import { live } from "./live.mjs";
import { looks } from "./looks.mjs";
import { records } from "./records.mjs";
import { ways } from "./ways.mjs";

const pictures = process.argv.includes("--pictures") ? new URL("../../../docs/page/", import.meta.url).pathname : null;

const browser = await chromium.launch({ executablePath: process.env.HOWDAH_BROWSER, args: ["--no-sandbox"] });
const broker = await start();
let steps = 0;

async function step(name, run) {
  const begun = Date.now();
  await run();
  steps += 1;
  console.log(`ok ${name} (${Date.now() - begun} ms)`);
}

/**
 * Opens a window that fails the run on errors in its console, violations of the content security policy, and requests to other
 * hosts. `http`: the only permitted origin. `refused`: the expected number of responses with status 401 or 403, which the console
 * reports as errors.
 */
async function open({ http = broker.http, refused = 0, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 800 }, locale: "en-GB", ...options });
  // The page shows figures after the broker has counted jobs, which takes long on a busy machine.
  context.setDefaultTimeout(240_000);
  const page = await context.newPage();
  const problems = [];
  const refusals = [];
  page.on("console", (message) => {
    if (message.type() !== "error") return;
    const isRefusal = message.text().match(/the server responded with a status of 40[13]/);
    (isRefusal ? refusals : problems).push(message.text());
  });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => request.url().startsWith(http) || problems.push(`asks ${request.url()}`));
  const close = async () => {
    await context.close();
    assert.deepEqual(problems, []);
    assert.equal(refusals.length, refused, refusals.join());
  };
  return { page, close };
}

async function picture(page, name, options = {}) {
  if (!pictures) return;
  const path = `${pictures}${name}.png`;
  await mkdir(dirname(path), { recursive: true });
  await page.screenshot({ path, ...options });
}

/** Reloads a view until it shows the data, which brokers count and sum up periodically. */
async function comes(page, path, locator) {
  for (let n = 0; n < 240 && (await locator.count()) === 0; n += 1) {
    await page.waitForTimeout(250);
    await page.goto(`${broker.http}${path}`);
  }
  await locator.waitFor();
}

try {
  await fill(broker.run);
  for (const group of [looks, changes, records, jobs, ways, live, doors]) await group({ step, open, picture, comes, broker });
  console.log(`${steps} steps in a browser, all well`);
} finally {
  await browser.close();
  await broker.stop();
}
