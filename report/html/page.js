// Adds to a page that is whole without it: theme, metric of the matrix, sorting,
// copying. No request, no storage but the choice of theme.
(() => {
  'use strict';
  const $ = (s, e = document) => [...e.querySelectorAll(s)];
  const root = document.documentElement;

  const theme = document.getElementById('theme');
  const themes = ['auto', 'light', 'dark'];
  const setTheme = (t) => {
    if (t === 'auto') delete root.dataset.theme; else root.dataset.theme = t;
    theme.textContent = 'Theme: ' + t;
    theme.dataset.now = t;
  };
  let saved = 'auto';
  try { saved = localStorage.getItem('theme') || 'auto'; } catch { /* storage may be refused */ }
  setTheme(themes.includes(saved) ? saved : 'auto');
  theme.hidden = false;
  theme.addEventListener('click', () => {
    const next = themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length];
    setTheme(next);
    try { localStorage.setItem('theme', next); } catch { /* the choice then ends with the page */ }
  });

  for (const b of $('.copy')) {
    b.hidden = false;
    b.addEventListener('click', async () => {
      const e = document.getElementById(b.dataset.copy);
      let done = false;
      try { await navigator.clipboard.writeText(e.textContent); done = true; } catch {
        const s = getSelection();
        s.selectAllChildren(e);
        try { done = document.execCommand('copy'); } catch { /* the text stays selected */ }
      }
      b.textContent = done ? 'Copied' : 'Selected';
      setTimeout(() => { b.textContent = 'Copy'; }, 2000);
    });
  }

  const choice = document.getElementById('metric');
  if (choice) {
    choice.hidden = false;
    choice.addEventListener('change', (e) => {
      const i = Number(e.target.value);
      for (const td of $('#matrix td[data-shades]')) {
        const v = td.querySelector('.v');
        if (v && td.querySelector('a')) v.textContent = td.dataset.texts.split('|')[i];
        const t = td.querySelector('.ttft');
        if (t) t.hidden = i === 2;
        const range = td.querySelector('.range');
        if (range) range.hidden = i !== 0;
        const shade = td.dataset.shades.split(' ')[i];
        td.className = td.className.replace(/\bh\d+\b/, '').trim();
        if (shade !== '-') td.classList.add(shade);
      }
      for (const p of $('.scale')) p.hidden = p.dataset.metric !== String(i);
    });
  }

  for (const table of $('table.list')) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    if (rows.length < 3 || table.id === '') continue;
    const key = (row, i) => {
      const c = row.cells[i];
      return c.dataset.value !== undefined ? Number(c.dataset.value) : c.textContent;
    };
    $('thead th', table).forEach((th, i) => {
      const b = document.createElement('button');
      b.type = 'button';
      b.className = 'sort';
      b.append(...th.childNodes);
      th.append(b);
      b.addEventListener('click', () => {
        const next = { none: 'descending', descending: 'ascending', ascending: 'none' }[th.getAttribute('aria-sort') || 'none'];
        $('thead th', table).forEach((o) => o.removeAttribute('aria-sort'));
        if (next !== 'none') th.setAttribute('aria-sort', next);
        const sign = next === 'ascending' ? 1 : -1;
        const sorted = next === 'none' ? rows : [...rows].sort((a, z) => {
          const x = key(a, i), y = key(z, i);
          const nx = typeof x === 'number', ny = typeof y === 'number';
          if (nx !== ny) return nx ? -1 : 1; // what has no number comes last
          if (nx) return sign * (x - y);
          return sign * (x < y ? -1 : x > y ? 1 : 0);
        });
        body.append(...sorted);
      });
    });
  }
})();
