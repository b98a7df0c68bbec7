// Views of other records with data: workers, limits, storage, tokens, audit, plots of each period.
import assert from "node:assert/strict";

/** Steps for the views of other records. */
export async function records({ step, open, picture, comes, broker }) {
  await step("a worker is shown with what it holds", async () => {
    const { page, close } = await open();
    await broker.run("enqueue", "video.cut", '{"clip":1}');
    const worker = broker.work("video.cut", "thumbnail.scan", "--jobs", "4", "--exec", "sleep 600");
    await comes(page, "/ui/workers", page.locator("tbody").getByText("1 of 4"));
    const row = page.locator("tbody tr").filter({ hasText: "video.cut" });
    await row.getByText("working").waitFor();
    await page.getByRole("columnheader", { name: "Quiet for" }).waitFor();
    await picture(page, "workers");
    await page.goto(`${broker.http}/ui/workers?type=mail.sent`);
    await page.getByText("There is no task type mail.sent").waitFor();
    await worker.stop();
    await close();
  });
  await step("a limit key that waits is paused and resumed", async () => {
    const { page, close } = await open();
    await broker.run("type", "set", "import.customer", "--key-max-running", "1");
    for (let n = 0; n < 7; n += 1) {
      await broker.run("enqueue", "import.customer", String(n), "--limit-key", n < 5 ? "customer 17" : "customer 4");
    }
    await comes(page, "/ui/limits?type=import.customer", page.locator("tbody").getByText("1 running per key"));
    const row = page.locator("tbody tr").filter({ hasText: "customer 17" });
    await row.getByRole("cell", { name: "4", exact: true }).waitFor();
    for (const [button, said] of [["Pause", "Done: paused."], ["Resume", "Done: resumed."]]) {
      await row.getByRole("button", { name: `${button}…` }).click();
      await page.getByRole("heading", { name: `${button} the limit key "customer 17" of import.customer?` }).waitFor();
      await page.getByRole("button", { name: button, exact: true }).click();
      await page.getByRole("status").getByText(said).waitFor();
      assert.equal(await row.getByText("paused", { exact: true }).count(), button === "Pause" ? 1 : 0);
      if (button === "Pause") await picture(page, "limits");
    }
    await close();
  });
  await step("brokers and tables are shown", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/storage`);
    await page.getByRole("rowheader", { name: /^broker-1/ }).waitFor();
    await page.getByText("answers this page").waitFor();
    for (const table of ["ready", "leased"]) await page.getByRole("rowheader", { name: table, exact: true }).waitFor();
    await picture(page, "storage");
    await close();
  });
  await step("tokens and the audit are listed and filtered", async () => {
    const { page, close } = await open();
    await broker.run("token", "create", "ann", "--scope", "read:*", "--scope", "operate:mail.*");
    await page.goto(`${broker.http}/ui/tokens`);
    await page.getByRole("rowheader", { name: "ann", exact: true }).waitFor();
    await page.getByText("operate:mail.*").waitFor();
    await page.goto(`${broker.http}/ui/audit`);
    assert.ok((await page.locator("tbody tr").count()) > 5);
    await picture(page, "audit");
    await page.getByLabel("Call").fill("PauseLimitKey");
    await page.getByRole("button", { name: "Show" }).click();
    await page.waitForURL("**/ui/audit?*method=PauseLimitKey*");
    assert.equal(await page.locator("tbody tr").count(), 1);
    await page.getByRole("cell", { name: "import.customer", exact: true }).waitFor();
    await close();
  });
  await step("what happened is drawn over each time", async () => {
    const { page, close } = await open();
    for (const [over, name] of [["2h", "2 hours"], ["24h", "24 hours"], ["7d", "7 days"], ["90d", "90 days"]]) {
      await page.goto(`${broker.http}/ui/statistics?type=mail.send`);
      await page.getByLabel("Over the last").selectOption(name);
      await page.getByRole("button", { name: "Show" }).click();
      await page.waitForURL(`**/ui/statistics?*over=${over}`);
      const boxes = await page.locator(".plot path.succeeded, .plot path.ready, .plot path.dead").all();
      // A plot shows succeeded, failed and enqueued jobs, and the backlog, which brokers sample every minute.
      assert.ok(boxes.length >= 3, `${boxes.length} series over ${name}`);
      for (const path of boxes) assert.ok((await path.boundingBox()).height > 10, `a flat series over ${name}`);
      // Each plot of durations has two paths with a point per period; the path of a single point is a dot.
      assert.equal(await page.locator(".plot path.half, .plot path.tail").count(), 4, name);
      for (const column of ["Wait mean", "Run p90", "Run sum"]) {
        await page.getByRole("columnheader", { name: column, exact: true }).waitFor();
      }
    }
    await close();
  });
}
