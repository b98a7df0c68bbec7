// Access to the page: login with a token, a read-only page, a reverse proxy.
import assert from "node:assert/strict";
import { token } from "./broker.mjs";
import { goTo } from "./keys.mjs";
import { proxy } from "./proxy.mjs";

/** Steps that test access. */
export async function doors({ step, open, broker }) {
  await step("one logs in with a token, sees what it allows, and logs out", async () => {
    const ann = await token();
    const guarded = await broker.another("--auth", "token", "--auth-token-file", ann.file);
    const { page, close } = await open({ http: guarded.http, refused: 1 });
    await page.goto(`${guarded.http}/ui/jobs?type=mail.send&state=dead`);
    await page.getByRole("heading", { name: "Log in" }).waitFor();
    await page.locator("#token:focus").waitFor();
    await page.keyboard.type("hwd_no_token");
    await page.keyboard.press("Enter");
    await page.getByRole("alert").getByText("This token is not valid").waitFor();
    await page.getByLabel("Token").fill(ann.secret);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL("**/ui/jobs?type=mail.send&state=dead");
    await page.getByText("ann", { exact: true }).waitFor();
    // Ann may read but not change anything, so the page offers her no actions.
    assert.equal(await page.getByRole("button", { name: "Retry…" }).count(), 0);
    assert.deepEqual(await page.evaluate(() => document.cookie), "");
    assert.equal(await page.getByRole("link", { name: "Tokens" }).count(), 0);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("heading", { name: "Log in" }).waitFor();
    await page.goto(`${guarded.http}/ui/`);
    await page.getByRole("heading", { name: "Log in" }).waitFor();
    await close();
    await guarded.stop();
    await ann.remove();
  });
  await step("a page that is read-only offers nothing and refuses what is sent all the same", async () => {
    const reading = await broker.another("--page", "read-only");
    const { page, close } = await open({ http: reading.http, refused: 1 });
    for (const view of ["type?name=mail.send", "jobs?type=mail.send&state=dead", "failures", "schedule?name=nightly-report", "bulks"]) {
      await page.goto(`${reading.http}/ui/${view}`);
      await page.getByText("This page changes nothing").waitFor();
      assert.equal(await page.getByRole("button", { name: "…" }).count(), 0, view);
      assert.equal(await page.getByRole("checkbox").count(), 0, view);
    }
    await page.goto(`${reading.http}/ui/confirm?do=pause-type&type=mail.send`);
    await page.getByRole("button", { name: "Pause", exact: true }).click();
    await page.getByRole("heading", { name: "Not permitted" }).waitFor();
    await page.goto(`${reading.http}/ui/type?name=mail.send`);
    assert.equal(await page.locator("h1").getByText("paused").count(), 0);
    await close();
    await reading.stop();
  });
  await step("behind a proxy every way stays under its path", async () => {
    for (const keeps of [true, false]) {
      const behind = await broker.another("--page-prefix", "/jobs/howdah");
      const front = await proxy(behind.http, "/jobs/howdah", keeps);
      const { page, close } = await open({ http: `${front.http}/jobs/howdah/` });
      await page.goto(`${front.http}/jobs/howdah/ui/`);
      const color = await page.evaluate(() => getComputedStyle(document.querySelector(".brand")).color);
      assert.notEqual(color, "rgb(0, 0, 238)", "the style sheet is missing");
      await page.locator('[data-live="ready"]').waitFor();
      await goTo(page, "t", "**/jobs/howdah/ui/types");
      await page.goto(`${front.http}/jobs/howdah/ui/type?name=report.build`);
      for (const name of ["Pause", "Resume"]) {
        await page.getByRole("button", { name: `${name}…` }).click();
        await page.getByRole("button", { name, exact: true }).click();
        await page.getByRole("status").getByText(`Done: ${name.toLowerCase()}d.`).waitFor();
        assert.ok(page.url().startsWith(`${front.http}/jobs/howdah/ui/type`), page.url());
      }
      await page.getByRole("button", { name: "Dark" }).click();
      await page.waitForURL("**/jobs/howdah/ui/type?name=report.build");
      await close();
      await front.stop();
      await behind.stop();
    }
  });
}
