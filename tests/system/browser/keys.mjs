// Key sequences.

/** Presses "g" and this key until the page at this URL is open: a page forgets the first key if the second one is late. */
export async function goTo(page, key, url) {
  for (let tries = 1; ; tries++) {
    await page.keyboard.press("g");
    await page.keyboard.press(key);
    try {
      return await page.waitForURL(url, { timeout: 5_000 });
    } catch (error) {
      if (tries === 10) throw error;
    }
  }
}
