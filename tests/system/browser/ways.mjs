// Other ways to use the page: a phone, no scripts, the keyboard.
import assert from "node:assert/strict";
import { goTo } from "./keys.mjs";

const views = ["/ui/", "/ui/types", "/ui/type?name=mail.send", "/ui/jobs?type=mail.send", "/ui/jobs?state=dead", "/ui/new-job?type=mail.send", "/ui/jobs?type=mail.send&state=dead&text=order", "/ui/job?id=1", "/ui/failures",
  "/ui/statistics", "/ui/statistics?type=mail.send&over=2h", "/ui/workers", "/ui/schedules",
  "/ui/schedule?name=nightly-report", "/ui/limits", "/ui/bulks", "/ui/storage", "/ui/audit", "/ui/tokens", "/ui/confirm?do=discard&type=mail.send"];

/** Views whose pictures other steps take in a window, with more rows. */
const picturedElsewhere = ["overview", "type", "jobs", "job", "failures", "statistics", "workers", "schedule", "limits", "bulks", "storage", "audit", "confirm"];

/** Asserts that nothing is wider than the window. */
async function fits(page) {
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(width[0] <= width[1], `${page.url()} is ${width[0]} px wide in a window of ${width[1]} px`);
}

/** Steps for phones, no scripts and the keyboard. */
export async function ways({ step, open, picture, comes, broker }) {
  await step("every view fits a phone and a window", async () => {
    for (const options of [{ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true }, {}]) {
      const { page, close } = await open(options);
      const pictured = new Set(options.isMobile ? [] : picturedElsewhere);
      for (const view of views) {
        await page.goto(broker.http + view);
        await fits(page);
        const name = view.match(/^\/ui\/([a-z-]*)/)[1] || "overview";
        if (!pictured.has(name)) await picture(page, options.isMobile ? `phone/${name}` : name);
        pictured.add(name);
      }
      await close();
    }
  });
  await step("numbers of dead jobs and texts of errors are in the window of a phone", async () => {
    const { page, close } = await open({ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
    await comes(page, "/ui/", page.locator("td.dead a").first());
    for (const [view, seen] of [
      ["/ui/", "td.dead, th a[href*='group=']"],
      ["/ui/types", "td.dead"],
      ["/ui/jobs?state=dead", "td.error, td [type=checkbox]"],
      ["/ui/type?name=mail.send", ".settings td, .settings input"],
    ]) {
      await page.goto(broker.http + view);
      const boxes = await page.locator(seen).evaluateAll((all) => all.map((one) => one.getBoundingClientRect()).map(({ left, right }) => [left, right]));
      assert.ok(boxes.length > 0, `${seen} on ${view}`);
      assert.deepEqual(boxes.filter(([left, right]) => left < 0 || right > 360 || right <= left), [], `${seen} on ${view}`);
    }
    await close();
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
    await goTo(page, "t", "**/ui/types");
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
}
