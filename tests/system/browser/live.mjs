// Live figures, and elements that must not change while they are in use.
import assert from "node:assert/strict";

/** Steps that test live updates. */
export async function live({ step, open, broker }) {
  const later = () => broker.run("enqueue", "later.on", "1", "--delay", "3h");
  const figure = (page) => page.locator('[data-live="scheduled"]');
  const number = async (page) => Number((await figure(page).textContent()).replaceAll(",", ""));
  /** Waits until the overview in this window shows this count, without a reload. */
  const shows = (page, count) => figure(page).getByText(String(count), { exact: true }).waitFor();
  /** Number of scheduled jobs. */
  const scheduled = async () => {
    const types = (await broker.run("types", "--json")).trim().split("\n");
    return types.reduce((sum, type) => sum + Number(JSON.parse(type).counts.scheduled ?? 0), 0);
  };

  await step("live figures change without a reload", async () => {
    const { page, close } = await open();
    await page.goto(`${broker.http}/ui/`);
    await page.evaluate(() => (window.same = true));
    const before = await scheduled();
    await shows(page, before);
    await later();
    await shows(page, before + 1);
    assert.ok(await page.evaluate(() => window.same), "the page was loaded again");
    await close();
  });
  await step("figures stand still while a text is selected or a dialog is open, and go on afterwards", async () => {
    const { page, close } = await open();
    const other = await open();
    for (const window of [page, other.page]) await window.goto(`${broker.http}/ui/`);
    for (const [what, begin, end] of [
      ["selection", () => getSelection().selectAllChildren(document.querySelector("h1")), () => getSelection().removeAllRanges()],
      ["dialog", () => document.body.appendChild(document.createElement("dialog")).showModal(), () => document.querySelector("dialog").close()],
    ]) {
      const before = await scheduled();
      await shows(page, before);
      await page.evaluate(begin);
      await later();
      await shows(other.page, before + 1);
      // The broker sends the same figures to all windows every two seconds. When the other window shows the second change, this
      // window has received the first one and must not have shown it.
      await later();
      await shows(other.page, before + 2);
      assert.equal(await number(page), before, `the figures changed under a ${what}`);
      await page.evaluate(end);
      await shows(page, before + 2);
    }
    await other.close();
    await close();
  });
  await step("no list and no question is refreshed while one chooses and writes", async () => {
    const { page, close } = await open();
    const other = await open();
    await other.page.goto(`${broker.http}/ui/`);
    const before = await scheduled();
    await shows(other.page, before);
    await page.goto(`${broker.http}/ui/jobs?type=later.on&state=scheduled`);
    const rows = await page.locator("tbody tr").count();
    await page.getByRole("checkbox").first().check();
    await later();
    await shows(other.page, before + 1);
    assert.ok(await page.getByRole("checkbox").first().isChecked());
    assert.equal(await page.locator("tbody tr").count(), rows);
    await page.getByRole("button", { name: "Cancel…" }).click();
    await page.getByRole("heading", { name: "Cancel 1 job?" }).waitFor();
    await page.getByLabel("Reason").fill("not needed");
    await later();
    await shows(other.page, before + 2);
    assert.equal(await page.getByLabel("Reason").inputValue(), "not needed");
    await other.close();
    await close();
  });
}
