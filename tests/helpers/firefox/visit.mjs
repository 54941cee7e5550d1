// Opens pages in the system's Firefox, one after the other, and prints as JSON what it found on each.
//
//     node visit.mjs < {"firefox": PATH, "width": PIXELS, "pages": [URL, …], "ask": {NAME: EXPRESSION, …}}
//
// For each URL: `errors`, what scripts reported; each NAME, the value of its expression; `figures`, for each figure that
// moves its name, and its count and its words after the key End and after the key Home.

import { text } from "node:stream/consumers";
import puppeteer from "puppeteer-core";

const { firefox, width, pages, ask } = JSON.parse(await text(process.stdin));
const browser = await puppeteer.launch({ browser: "firefox", executablePath: firefox, headless: true });

async function after(page, box, key) {
  await box.focus();
  await page.keyboard.press(key);
  await new Promise((resolve) => setTimeout(resolve, 50));
  return box.evaluate((e) => [".figure-count", ".figure-says"].map((part) => e.querySelector(part).innerText));
}

async function visit(url) {
  const page = await browser.newPage();
  const found = { errors: [], figures: [] };
  page.on("pageerror", (error) => found.errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && found.errors.push(message.text()));
  await page.setViewport({ width, height: 900 });
  await page.goto(url, { waitUntil: "load", timeout: 60_000 });
  await page.evaluate("document.fonts.ready.then(() => true)");
  for (const [name, expression] of Object.entries(ask)) found[name] = await page.evaluate(expression);
  for (const box of await page.$$(".figure-box")) {
    if (!(await box.isVisible())) continue;
    const name = await box.evaluate((e) => e.parentElement.localName);
    found.figures.push({ name, end: await after(page, box, "End"), home: await after(page, box, "Home") });
  }
  await page.close();
  return found;
}

try {
  const found = {};
  for (const url of pages) found[url] = await visit(url);
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
}
