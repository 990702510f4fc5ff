// Somebody who uses the example page: asks, and notes what is to be seen.
//
// node page.mjs FOLDER-OF-NODE_MODULES CHROMIUM URL SCREENSHOT
import { createRequire } from "node:module";

const [folder, executablePath, url, screenshot] = process.argv.slice(2);
const loaded = createRequire(`${folder}/`)("puppeteer-core");
const puppeteer = loaded.default ?? loaded;

const args = ["--no-sandbox", "--disable-gpu", "--no-proxy-server", "--disable-dev-shm-usage"];
const browser = await puppeteer.launch({ executablePath, headless: true, args });
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error(String(error)));
  page.on("console", (message) => console.error(message.text()));
  await page.goto(url);
  await page.waitForSelector("input");
  await page.type("input", "slow");
  await page.click("button");
  const looks = [];
  const lengths = new Set();
  let isKept = false;
  const until = Date.now() + 60_000;
  while (Date.now() < until) {
    const look = await page.evaluate(() => {
      const texts = [...document.querySelectorAll("article.assistant p.text")];
      const tool = document.querySelector("section.tool");
      return {
        status: document.querySelector("form").dataset.status,
        text: texts.map((text) => text.textContent).join(""),
        tool: tool?.dataset.state ?? null,
        output: tool?.querySelector("pre").textContent.length ?? 0,
        error: document.querySelector("p.error")?.textContent ?? null,
      };
    });
    if (JSON.stringify(looks.at(-1)) !== JSON.stringify(look)) looks.push(look);
    if (look.output > 0) lengths.add(look.output);
    // A picture takes its time: what grows is looked at before.
    if (!isKept && lengths.size >= 3) {
      await page.screenshot({ path: screenshot });
      isKept = true;
    }
    if (look.error || (look.status === "ready" && look.text)) break;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  process.stdout.write(JSON.stringify(looks));
} finally {
  await browser.close();
}
