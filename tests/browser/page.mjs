// The page for operators in a real browser. Each step has a name; the first one that fails ends the run.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { chromium } from "playwright-core";
import { fill, start } from "./broker.mjs";

const pictures = process.argv.includes("--pictures") ? new URL("../../docs/page/", import.meta.url).pathname : null;
const firstLoad = 60_000;

const browser = await chromium.launch({ executablePath: process.env.HOWDAH_BROWSER, args: ["--no-sandbox"] });
const broker = await start();
let steps = 0;

async function step(name, run) {
  const begun = Date.now();
  await run();
  steps += 1;
  console.log(`ok ${name} (${Date.now() - begun} ms)`);
}

/** A window that fails the run for each error in its console, each refusal by the policy, each request elsewhere. */
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 800 }, locale: "en-GB", ...options });
  const page = await context.newPage();
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => request.url().startsWith(broker.http) || problems.push(`asks ${request.url()}`));
  const close = async () => {
    await context.close();
    assert.deepEqual(problems, []);
  };
  return { page, close };
}

async function picture(page, name, options = {}) {
  if (!pictures) return;
  await mkdir(pictures, { recursive: true });
  await page.screenshot({ path: `${pictures}${name}.png`, ...options });
}

/** Shows a view again until it has what brokers count or sum up in their own time. */
async function comes(page, path, locator) {
  for (let n = 0; n < 240 && (await locator.count()) === 0; n += 1) {
    await page.waitForTimeout(250);
    await page.goto(`${broker.http}${path}`);
  }
  await locator.waitFor();
}

/** Nothing is wider than the window. */
async function fits(page) {
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(width[0] <= width[1], `${page.url()} is ${width[0]} px wide in a window of ${width[1]} px`);
}

const views = ["/ui/", "/ui/types", "/ui/type?name=mail.send", "/ui/jobs?type=mail.send", "/ui/job?id=1", "/ui/failures",
  "/ui/statistics", "/ui/statistics?type=mail.send&over=2h", "/ui/workers", "/ui/schedules",
  "/ui/schedule?name=nightly-report", "/ui/limits", "/ui/bulks", "/ui/storage", "/ui/audit", "/ui/tokens", "/ui/confirm?do=discard&type=mail.send"];

try {
  await fill(broker.run);
  await step("the first load is small", async () => {
    const { page, close } = await open();
    const sizes = [];
    page.on("response", async (response) => sizes.push((await response.body().catch(() => "")).length));
    await page.goto(`${broker.http}/ui/`, { waitUntil: "networkidle" });
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    assert.ok(sizes.length >= 3 && bytes <= firstLoad, `${bytes} bytes in ${sizes.length} files`);
    console.log(`   ${bytes} bytes in ${sizes.length} files`);
    await comes(page, "/ui/", page.getByText("thumbnail.make").first());
    await picture(page, "overview");
    await close();
  });
  await step("a type is paused and resumed after a question", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/type?name=thumbnail.make`);
    await page.getByRole("button", { name: "Pause…" }).click();
    await page.getByRole("heading", { name: "Pause thumbnail.make?" }).waitFor();
    await page.getByLabel("Reason").fill("a test");
    await page.getByRole("button", { name: "Pause", exact: true }).click();
    await page.getByRole("status").getByText("It was paused.").waitFor();
    await page.getByRole("button", { name: "Resume…" }).click();
    await page.getByRole("button", { name: "Resume", exact: true }).click();
    await page.getByRole("status").getByText("It was resumed.").waitFor();
    await picture(page, "type");
    await close();
  });
  await step("dead jobs with the same error are retried after a question with three of them", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/failures`);
    await picture(page, "failures");
    await page.getByRole("button", { name: "Retry the dead…" }).first().click();
    await page.getByRole("heading", { name: "Retry 6 dead jobs of mail.send with this error?" }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 3);
    await picture(page, "confirm");
    await page.getByRole("link", { name: "No, go back" }).click();
    await page.getByRole("heading", { name: "Failures" }).waitFor();
    await page.goto(`${broker.http}/ui/jobs?type=mail.send&state=dead`);
    await picture(page, "jobs");
    await page.getByRole("checkbox").nth(0).check();
    await page.getByRole("checkbox").nth(1).check();
    await page.getByRole("button", { name: "Retry…" }).click();
    await page.getByRole("heading", { name: "Retry 2 jobs?" }).waitFor();
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    await page.getByRole("status").getByText("2 jobs were retried.").waitFor();
    await close();
  });
  await step("a bulk operation is previewed, started, paused, resumed and cancelled", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/bulks?type=thumbnail.make`);
    const form = page.locator("#start form");
    await form.getByLabel("Do").selectOption("bulk-reprioritize");
    await form.getByLabel("New priority").fill("5");
    await form.getByLabel("Most jobs a second").fill("1");
    await form.getByRole("button", { name: "Preview…" }).click();
    await page.getByRole("heading", { name: /Bulk .* 70 jobs of thumbnail.make/ }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 3);
    await page.getByLabel("Reason").fill("thumbnails can wait");
    await page.getByRole("button", { name: /^Bulk|^Start/ }).click();
    await page.getByRole("status").getByText("It was started.").waitFor();
    for (const [button, said] of [["Pause", "It was paused."], ["Resume", "It was resumed."], ["Pause", "It was paused."]]) {
      await page.getByRole("button", { name: `${button}…` }).click();
      await page.getByRole("button", { name: new RegExp(`^${button}`) }).click();
      await page.getByRole("status").getByText(said).waitFor();
    }
    await page.goto(`${broker.http}/ui/bulks`);
    await picture(page, "bulk");
    await page.getByRole("button", { name: "Cancel…" }).click();
    await page.getByRole("button", { name: /^Cancel/ }).click();
    await page.getByRole("status").getByText("It was cancelled.").waitFor();
    assert.equal(await page.getByRole("button", { name: "Pause…" }).count(), 0);
    await close();
  });
  await step("jobs are moved to another type, get other fields, and come back after a bulk cancel", async () => {
    const { page, close } = await open();
    const rows = ["1", "2", "3"];
    for (const row of rows) await broker.run("enqueue", "import.row", row);
    const completed = async (said) => {
      await page.getByRole("button", { name: /^Bulk/ }).click();
      await page.getByRole("status").getByText(said).waitFor();
      const row = page.locator("tbody tr").first();
      await comes(page, "/ui/bulks", row.getByText("completed", { exact: true }));
      await row.getByText("3 of 3").waitFor();
    };
    const start = async (type, operation, fields, heading) => {
      await page.goto(`${broker.http}/ui/bulks?type=${type}`);
      const form = page.locator("#start form");
      await form.getByLabel("Do").selectOption(operation);
      if (Object.keys(fields).length > 0) await form.getByText("To move jobs, or to set fields").click();
      for (const [label, value] of Object.entries(fields)) await form.getByLabel(label, { exact: true }).fill(value);
      if (operation === "bulk-set") await picture(page, "bulk-fields");
      await form.getByRole("button", { name: "Preview…" }).click();
      await page.getByRole("heading", { name: heading }).waitFor();
      assert.equal(await page.locator("tbody tr").count(), 3);
      await completed("It was started.");
    };
    await start("import.row", "bulk-move", { "Move to type": "import.slow" }, /^Bulk move 3 jobs of import.row/);
    const fields = { Attempts: "7", "Timeout of an attempt": "5m", "Start in": "2h", "Add tags": "slow, nightly" };
    await start("import.slow", "bulk-set", fields, /^Bulk set fields of 3 jobs of import.slow/);
    const shows = async (state) => {
      await page.goto(`${broker.http}/ui/jobs?type=import.slow&state=${state}`);
      assert.equal(await page.locator("tbody tr").count(), 3);
      await page.locator("tbody th a").first().click();
      await page.getByText("nightly").first().waitFor();
    };
    await shows("scheduled");
    await start("import.slow", "bulk-cancel", {}, /^Bulk cancel 3 jobs of import.slow/);
    await page.getByRole("button", { name: "Undo…" }).first().click();
    await page.getByRole("heading", { name: /^Bulk undo 3 jobs/ }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 3);
    await completed("It was started.");
    await shows("scheduled");
    await close();
  });
  await step("a job tells its story", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/jobs?type=mail.send&state=dead`);
    await page.locator("tbody th a").first().click();
    await page.getByText("Attempt 1 failed").waitFor();
    await page.getByText("Connection refused").first().waitFor();
    await picture(page, "job");
    await page.getByRole("link", { name: "as hex" }).click();
    await page.getByText("000000").waitFor();
    await close();
  });
  await step("dark is chosen and stays", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/jobs?type=mail.send`);
    const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.getByRole("button", { name: "Dark" }).click();
    await page.waitForURL("**/ui/jobs?type=mail.send");
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.notEqual(dark, light);
    await page.goto(`${broker.http}/ui/`);
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), dark);
    await picture(page, "dark");
    await close();
  });
  await step("a system that is dark gets it dark", async () => {
    const { page, close } = await open({ colorScheme: "dark" });
    await page.goto(`${broker.http}/ui/`);
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.ok(back.match(/\d+/g).slice(0, 3).every((part) => Number(part) < 80), back);
    await close();
  });
  await step("every view fits a phone and a window", async () => {
    for (const options of [{ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true }, {}]) {
      const { page, close } = await open(options);
      for (const view of views) {
        await page.goto(broker.http + view);
        await fits(page);
      }
      await page.goto(`${broker.http}/ui/`);
      if (options.isMobile) await picture(page, "phone");
      await close();
    }
  });
  await step("everything is read and done without a script", async () => {
    const { page, close } = await open({ javaScriptEnabled: false });
    for (const view of views) {
      await page.goto(broker.http + view);
      await page.locator("h1").waitFor();
    }
    await page.goto(`${broker.http}/ui/jobs?type=thumbnail.make&state=ready`);
    await page.getByRole("link", { name: "Next" }).click();
    await page.locator("tbody th a").first().click();
    await page.getByRole("button", { name: "Cancel…" }).click();
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await page.getByText("1 job was cancelled.").waitFor();
    await close();
  });
  await step("the keyboard is enough", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/`);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("g");
    await page.keyboard.press("t");
    await page.waitForURL("**/ui/types");
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.keyboard.press("k");
    const first = await page.locator("tbody th a").first().textContent();
    assert.equal(await page.evaluate(() => document.activeElement.textContent), first);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: first, level: 1 }).waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("1");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Job 1", exact: true }).waitFor();
    await close();
  });
  await step("what happened is drawn", async () => {
    const { page, close } = await open();
    const drawn = page.locator(".plot path.succeeded");
    await comes(page, "/ui/statistics?type=mail.send&over=2h", drawn);
    assert.ok((await drawn.boundingBox()).height > 10);
    await picture(page, "statistics");
    await close();
  });
  await step("schedules and storage are shown", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/schedule?name=nightly-report`);
    assert.equal(await page.locator(".timeline li").count(), 5);
    await picture(page, "schedule");
    await page.goto(`${broker.http}/ui/audit`);
    await page.getByText("UpdateTaskType").first().waitFor();
    await close();
  });
  console.log(`${steps} steps in a browser, all well`);
} finally {
  await browser.close();
  await broker.stop();
}
