// Tests that each change asks for confirmation before the page makes the call.
import assert from "node:assert/strict";

/** Steps that change data. */
export async function changes({ step, open, picture, comes, broker }) {
  await step("a type is paused and resumed after a question", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/type?name=thumbnail.make`);
    await page.getByRole("button", { name: "Pause…" }).click();
    await page.getByRole("heading", { name: "Pause thumbnail.make?" }).waitFor();
    await page.getByLabel("Reason").fill("a test");
    await page.getByRole("button", { name: "Pause", exact: true }).click();
    await page.getByRole("status").getByText("Done: paused.").waitFor();
    await page.getByRole("button", { name: "Resume…" }).click();
    await page.getByRole("button", { name: "Resume", exact: true }).click();
    await page.getByRole("status").getByText("Done: resumed.").waitFor();
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
    await form.getByLabel("Maximum jobs per second").fill("1");
    await form.getByRole("button", { name: "Preview…" }).click();
    await page.getByRole("heading", { name: "Bulk set the priority of 70 jobs of thumbnail.make to 5?" }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 3);
    await page.getByLabel("Reason").fill("thumbnails can wait");
    await page.getByText("at most 1", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Bulk set priority", exact: true }).click();
    await page.getByRole("status").getByText("Done: started.").waitFor();
    for (const [button, said] of [["Pause", "Done: paused."], ["Resume", "Done: resumed."], ["Pause", "Done: paused."]]) {
      await page.getByRole("button", { name: `${button}…` }).click();
      await page.getByRole("button", { name: new RegExp(`^${button}`) }).click();
      await page.getByRole("status").getByText(said).waitFor();
    }
    await page.goto(`${broker.http}/ui/bulks`);
    await picture(page, "bulk");
    await page.getByRole("button", { name: "Cancel…" }).click();
    await page.getByRole("button", { name: /^Cancel/ }).click();
    await page.getByRole("status").getByText("Done: cancelled.").waitFor();
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
      // The preview shows the entered values again before the operator starts the operation.
      for (const value of Object.values(fields)) await page.locator("dl.asked dd").getByText(value).waitFor();
      await completed("Done: started.");
    };
    await start("import.row", "bulk-move", { "Move to type": "import.slow" }, "Bulk move 3 jobs of import.row to import.slow?");
    const fields = { Attempts: "7", "Timeout of an attempt": "5m", "Start in": "2h", "Add tags": "slow, nightly" };
    await start("import.slow", "bulk-set", fields, "Bulk set fields of 3 jobs of import.slow?");
    const shows = async (state) => {
      await page.goto(`${broker.http}/ui/jobs?type=import.slow&state=${state}`);
      assert.equal(await page.locator("tbody tr").count(), 3);
      await page.locator("tbody th a").first().click();
      await page.getByText("nightly").first().waitFor();
    };
    await shows("scheduled");
    await start("import.slow", "bulk-cancel", {}, "Bulk cancel 3 jobs of import.slow?");
    await page.getByRole("button", { name: "Undo…" }).first().click();
    await page.getByRole("heading", { name: /^Bulk undo 3 jobs of bulk operation \d+\?$/ }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 3);
    await completed("Done: started.");
    assert.equal(await page.getByRole("button", { name: "Undo…" }).count(), 0, "all of them were put back");
    await shows("scheduled");
    await close();
  });
}
