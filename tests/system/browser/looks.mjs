// Contents and appearance of the page.
import assert from "node:assert/strict";

const firstLoad = 60_000;

/** Steps that test contents and appearance. */
export async function looks({ step, open, picture, comes, broker }) {
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
    assert.equal(await page.locator(".timeline li").count(), 10);
    await picture(page, "schedule");
    await page.goto(`${broker.http}/ui/audit`);
    await page.getByText("UpdateTaskType").first().waitFor();
    await close();
  });
}
