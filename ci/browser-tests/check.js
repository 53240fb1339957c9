// Opens each page in Chromium and checks what a reader would notice:
//
//   - in light, dark, print, 390 px wide, and with JavaScript off;
//   - no request but for the page itself, nothing on the console, no dialog;
//   - nothing wider than the window but what scrolls by itself;
//   - no two texts on top of each other, in tables, lists and charts;
//   - axe-core finds nothing, in light, dark and narrow;
//   - tables have captions and rows without JavaScript, and the same texts with it;
//   - the switch of metric, sorting, theme and copying work;
//   - at most 300 KB, and no layout shift.
import { createRequire } from 'node:module';
import { readFileSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(join(process.env.MODULES, 'package.json'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const out = process.env.OUT;
const maxBytes = 300_000;

let passed = 0;
const failures = [];
function check(page, what, problems) {
  if (problems.length === 0) { passed++; return; }
  failures.push(`${page}: ${what}`);
  console.log(`FAIL ${page}: ${what}`);
  for (const p of problems.slice(0, 8)) console.log('     ' + p);
  if (problems.length > 8) console.log(`     and ${problems.length - 8} more`);
}

const views = [
  { name: 'light', width: 1280, colorScheme: 'light', axe: true },
  { name: 'dark', width: 1280, colorScheme: 'dark', axe: true },
  { name: 'narrow', width: 390, colorScheme: 'light', axe: true },
  { name: 'narrow-dark', width: 390, colorScheme: 'dark', axe: true },
  { name: 'print', width: 794, colorScheme: 'light', media: 'print' },
  { name: 'no-script', width: 1280, colorScheme: 'light', noScript: true },
];

// Runs in the page: what sticks out of the window without a scroller of its own.
function overflowing() {
  const bad = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) bad.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${width}`);
  const scrolls = (e) => {
    for (let p = e; p && p !== document.body; p = p.parentElement) {
      const o = getComputedStyle(p);
      if (['auto', 'scroll', 'hidden'].includes(o.overflowX)) return true;
    }
    return false;
  };
  for (const e of document.body.querySelectorAll('*')) {
    if (e.closest('.skip') || e.closest('svg') && e.tagName !== 'svg') continue;
    const r = e.getBoundingClientRect();
    if (r.width > 0 && (r.right > width + 1 || r.left < -1) && !scrolls(e)) {
      bad.push(`<${e.tagName.toLowerCase()} class="${e.getAttribute('class') ?? ''}"> from ${Math.round(r.left)} to ${Math.round(r.right)} of ${width}: ${e.textContent.trim().slice(0, 40)}`);
    }
  }
  return bad;
}

// Runs in the page: texts that cover each other, within one table, list or chart.
function overlapping() {
  const bad = [];
  const visible = (e) => e.checkVisibility?.({ visibilityProperty: true, contentVisibilityAuto: true }) ?? true;
  const boxes = (nodes) => {
    const list = [];
    for (const n of nodes) {
      if (!visible(n.nodeType === 3 ? n.parentElement : n)) continue;
      const r = document.createRange();
      r.selectNodeContents(n);
      for (const b of r.getClientRects()) {
        if (b.width > 1 && b.height > 1) list.push({ b, text: n.textContent.trim(), node: n });
      }
    }
    return list;
  };
  const texts = (root) => {
    const w = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const list = [];
    while (w.nextNode()) {
      const p = w.currentNode.parentElement;
      if (!w.currentNode.textContent.trim() || p.closest('title, desc, caption, script, style, .skip')) continue;
      // What sticks lies over what scrolls below it.
      if (['sticky', 'absolute'].includes(getComputedStyle(p.closest('th, td, button') ?? p).position)) continue;
      list.push(w.currentNode);
    }
    return list;
  };
  for (const root of document.querySelectorAll('header, .headlines, .facts, table, svg, ul, .scale, fieldset, footer')) {
    const list = boxes(texts(root));
    for (let i = 0; i < list.length; i++) {
      for (let j = i + 1; j < list.length; j++) {
        const a = list[i].b, c = list[j].b;
        const x = Math.min(a.right, c.right) - Math.max(a.left, c.left);
        const y = Math.min(a.bottom, c.bottom) - Math.max(a.top, c.top);
        // Line boxes may touch; ink does not until a quarter of the line is shared.
        if (x > 1.5 && y > Math.min(a.height, c.height) / 4 && list[i].node !== list[j].node) {
          bad.push(`"${list[i].text.slice(0, 40)}" and "${list[j].text.slice(0, 40)}" in <${root.tagName.toLowerCase()}>`);
        }
      }
    }
  }
  return bad;
}

// Runs in the page: the tables, as texts.
function tables() {
  return [...document.querySelectorAll('main table:not(.prose table)')].map((t) => ({
    caption: t.caption?.textContent ?? '',
    head: t.tHead?.rows[0]?.cells.length ?? 0,
    scopes: [...t.querySelectorAll('th')].every((h) => h.scope),
    rows: [...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent)),
  }));
}

async function open(browser, file, view) {
  const context = await browser.newContext({
    viewport: { width: view.width, height: 900 }, colorScheme: view.colorScheme,
    javaScriptEnabled: !view.noScript, reducedMotion: 'reduce',
  });
  const page = await context.newPage();
  const url = pathToFileURL(file).href;
  const noise = [], requests = [];
  page.on('console', (m) => noise.push(`${m.type()}: ${m.text()}`));
  page.on('pageerror', (e) => noise.push(`error: ${e.message}`));
  page.on('dialog', (d) => { noise.push(`dialog: ${d.message()}`); d.dismiss(); });
  page.on('request', (r) => { if (r.url() !== url && r.url() !== 'data:,') requests.push(r.url()); });
  if (view.media) await page.emulateMedia({ media: view.media, colorScheme: view.colorScheme });
  await page.goto(url, { waitUntil: 'load' });
  return { context, page, noise, requests };
}

async function interactions(page) {
  const bad = [];
  const matrix = await page.$('#matrix td a .v');
  if (matrix && await page.$('#metric')) {
    const texts = (i) => page.$$eval('#matrix td[data-texts]', (l, k) => l.map((e) => [e.dataset.texts.split('|')[k], e.querySelector('a .v')?.textContent]), i);
    for (const i of [3, 2, 1, 0]) {
      await page.check(`#metric input[value="${i}"]`, { force: true });
      for (const [want, got] of await texts(i)) if (got !== undefined && got !== want) bad.push(`metric ${i} shows ${got}, not ${want}`);
      if (!await page.isVisible(`.scale[data-metric="${i}"]`) && await page.$(`.scale[data-metric="${i}"]`)) bad.push(`the scale of metric ${i} is hidden`);
    }
  }
  if (await page.$('#measurements')) {
    const column = () => page.$$eval('#measurements tbody tr', (l) => l.map((r) => r.cells[4].dataset.value ?? ''));
    const before = await column();
    const button = page.locator('#measurements thead th:nth-child(5) button');
    await button.click();
    const numbers = (await column()).filter((v) => v !== '').map(Number);
    if (numbers.some((v, i) => i > 0 && v > numbers[i - 1])) bad.push('sorting does not descend');
    const tail = (await column()).slice(numbers.length);
    if (tail.some((v) => v !== '')) bad.push('rows without a number are not last');
    await button.click();
    await button.click();
    if (JSON.stringify(await column()) !== JSON.stringify(before)) bad.push('the third click does not restore the order');
  }
  const color = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const seen = new Set();
  for (let i = 0; i < 3; i++) { await page.click('#theme'); seen.add(await color()); }
  if (seen.size !== 2) bad.push(`the theme button gives ${seen.size} backgrounds, not 2`);
  for (const b of await page.$$('.copy')) {
    await b.click();
    const said = await page.waitForFunction((e) => ['Copied', 'Selected'].includes(e.textContent), b, { timeout: 3000 }).catch(() => null);
    if (!said) bad.push('the copy button says nothing');
  }
  return bad;
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
try {
  for (const arg of process.argv.slice(2)) {
    const file = resolve(arg);
    const short = basename(file) === 'index.html' ? basename(dirname(dirname(file))) : basename(file, '.html');
    const bytes = statSync(file).size;
    check(short, `size ${bytes} bytes`, bytes <= maxBytes ? [] : [`more than ${maxBytes}`]);
    let withScript;
    for (const view of views) {
      const { context, page, noise, requests } = await open(browser, file, view);
      if (view.name === 'light') {
        const shift = await page.evaluate(() => new Promise((done) => {
          let sum = 0;
          new PerformanceObserver((l) => { for (const e of l.getEntries()) sum += e.value; }).observe({ type: 'layout-shift', buffered: true });
          requestAnimationFrame(() => setTimeout(() => done(sum), 50));
        }));
        check(short, 'no layout shift', shift < 0.001 ? [] : [String(shift)]);
      }
      if (out) await page.screenshot({ path: join(out, `${short}-${view.name}.png`), fullPage: true });
      check(short, `${view.name}: nothing wider than the window`, await page.evaluate(overflowing));
      check(short, `${view.name}: no text covers another`, await page.evaluate(overlapping));
      const found = await page.evaluate(tables);
      if (view.name === 'light') {
        withScript = JSON.stringify(found.map((t) => t.rows));
        check(short, 'one h1, one main, a language', await page.evaluate(() => {
          const n = (s) => document.querySelectorAll(s).length;
          return [n('h1') === 1, n('main') === 1, document.documentElement.lang !== ''].every(Boolean) ? [] : ['missing or twice'];
        }));
        check(short, 'no id twice, no link to nowhere', await page.evaluate(() => {
          const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
          const twice = ids.filter((x, i) => ids.indexOf(x) !== i);
          const lost = [...document.querySelectorAll('a[href^="#"]')].map((a) => decodeURIComponent(a.hash.slice(1))).filter((h) => !ids.includes(h));
          return [...twice.map((x) => `id ${x} twice`), ...lost.map((x) => `#${x} is nowhere`)];
        }));
      }
      if (view.noScript) {
        const bad = found.filter((t) => !t.caption || !t.head || !t.scopes || t.rows.length === 0).map((t) => `table "${t.caption}" lacks caption, head, scope or rows`);
        if (JSON.stringify(found.map((t) => t.rows)) !== withScript) bad.push('the tables hold other texts than with JavaScript');
        check(short, 'no-script: all tables are there', bad);
        check(short, 'no-script: no dead buttons', (await page.$$('button:visible')).length === 0 ? [] : ['a button that does nothing is shown']);
      }
      if (view.axe) {
        await page.evaluate(axe);
        const result = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
        check(short, `${view.name}: axe-core finds nothing`, result.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.target.join(' ')}: ${n.failureSummary.split('\n').slice(1, 2).join(' ').trim()}`)));
      }
      if (view.name === 'light' || view.name === 'narrow') check(short, `${view.name}: controls work`, await interactions(page));
      check(short, `${view.name}: no request leaves the page`, requests);
      check(short, `${view.name}: the console is empty`, noise);
      await context.close();
    }
  }
} finally {
  await browser.close();
}
console.log(`${passed} passed, ${failures.length} failed`);
process.exitCode = failures.length ? 1 : 0;
