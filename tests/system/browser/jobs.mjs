// Actions on single jobs and schedules, searches, and user input in jobs.
import assert from "node:assert/strict";

const script = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";

/** Steps for single jobs, schedules and searches. */
export async function jobs({ step, open, comes, broker }) {
  await step("a schedule is run now", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/schedule?name=cleanup`);
    await page.getByRole("button", { name: "Run now…" }).click();
    await page.getByRole("heading", { name: "Run the schedule cleanup?" }).waitFor();
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.getByRole("status").getByText("Done: run.").waitFor();
    await page.getByRole("link", { name: /^job \d+/ }).click();
    await page.getByRole("link", { name: "files.clean" }).first().waitFor();
    await close();
  });
  await step("a dead job is discarded, and no other", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/jobs?type=mail.send&state=dead`);
    const before = await page.locator("tbody tr").count();
    const id = await page.locator("tbody th a").first().textContent();
    await page.getByRole("checkbox", { name: `Choose job ${id}` }).check();
    await page.getByRole("button", { name: "Discard…" }).click();
    await page.getByRole("heading", { name: "Discard 1 job?" }).waitFor();
    await page.getByRole("button", { name: "Discard", exact: true }).click();
    await page.getByRole("status").getByText("1 job was discarded.").waitFor();
    assert.equal(await page.locator("tbody tr").count(), before - 1);
    await page.goto(`${broker.http}/ui/job?id=${id}`);
    await page.locator(".timeline").getByText("Discarded").waitFor();
    assert.deepEqual(await page.getByRole("button", { name: "…" }).allTextContents(), ["Run again…"]);
    await close();
  });
  await step("a job is taken from its worker and gets another priority", async () => {
    const { page, close } = await open();
    const id = (await broker.run("enqueue", "video.join", "1")).match(/\d+/)[0];
    const worker = broker.work("video.join", "--exec", "sleep 600");
    await comes(page, `/ui/job?id=${id}`, page.getByText("Attempt 1 runs"));
    await page.getByRole("button", { name: "Take from worker…" }).click();
    await page.getByRole("heading", { name: "Take 1 job from the worker?" }).waitFor();
    await page.getByRole("button", { name: "Take from worker", exact: true }).click();
    await page.getByRole("status").getByText("1 job was released.").waitFor();
    await worker.stop();
    await page.getByLabel("Priority").fill("-20");
    await page.getByRole("button", { name: "Set priority…" }).click();
    await page.getByRole("heading", { name: "Set the priority of 1 job to -20?" }).waitFor();
    await page.getByRole("button", { name: "Set priority", exact: true }).click();
    await page.getByRole("status").getByText("1 job was given another priority.").waitFor();
    assert.equal(await page.getByLabel("Priority").inputValue(), "-20");
    await close();
  });
  await step("jobs are found by a header and by a text in their payload", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/jobs?type=mail.send&state=dead`);
    for (const [label, text] of [["Header", "tenant=north"], ["Text in the payload", "welcome"], ["JSON path in the payload", "$.order > 4000"]]) {
      await page.goto(`${broker.http}/ui/jobs?type=mail.send&state=dead`);
      await page.getByText("Search headers and payloads").click();
      await page.getByLabel(label).fill(text);
      await page.getByRole("button", { name: "Show" }).click();
      await page.getByText(/^Scanned \d+ jobs/).waitFor();
      assert.ok((await page.locator("tbody tr").count()) >= 3, label);
    }
    await page.keyboard.press("/");
    await page.keyboard.type("cust:42");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "by the key" }).click();
    assert.equal(await page.getByLabel("Key", { exact: true }).inputValue(), "cust:42");
    await close();
  });
  await step("scripts that others have written are text in every view", async () => {
    const { page, close } = await open();
    let asked = 0;
    page.on("dialog", (dialog) => ((asked += 1), dialog.dismiss()));
    const carries = ["--key", script, "--tag", script, "--header", `x=${script}`, "--fair-key", script, "--max-attempts", "1"];
    const id = (await broker.run("enqueue", "hostile.job", script, ...carries)).match(/\d+/)[0];
    const quoted = script.replaceAll("'", "'\\''");
    await broker.run("work", "hostile.job", "--drain=now", "--exec", `printf '%s' '${quoted}' >&2; exit 1`);
    await broker.run("type", "set", "hostile.key", "--key-max-running", "1");
    for (let n = 0; n < 3; n += 1) await broker.run("enqueue", "hostile.key", "1", "--limit-key", script);
    await page.goto(`${broker.http}/ui/confirm?do=retry&id=${id}`);
    await page.getByLabel("Reason").fill(script);
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    await page.getByRole("status").getByText("1 job was retried.").waitFor();
    await broker.run("work", "hostile.job", "--drain=now", "--exec", `printf '%s' '${quoted}' >&2; exit 1`);
    const all = encodeURIComponent(script);
    for (const [view, shown] of [
      [`job?id=${id}`, 5], [`job?id=${id}&as=hex`, 4], ["jobs?type=hostile.job&state=dead", 2], ["failures?type=hostile.job", 1],
      [`jobs?type=hostile.job&state=dead&group=${all}`, 1], ["limits?type=hostile.key", 1], ["audit", 1], [`types?q=${all}`, 1],
      [`bulks?state=dead&group=${all}`, 0], [`confirm?do=bulk-retry&type=hostile.job&group=${all}`, 1],
    ]) {
      await page.goto(`${broker.http}/ui/${view}`);
      const text = await page.locator("main").innerText();
      assert.ok(text.split("<script>alert(1)</script>").length > shown, `${view}: ${text}`);
      assert.equal(await page.locator("main script, main img").count(), 0, view);
    }
    assert.equal(asked, 0, "a script ran");
    await close();
  });
}
