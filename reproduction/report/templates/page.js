"use strict";
(() => {
  const table = document.getElementById("claims-table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const headers = Array.from(table.tHead.rows[0].cells);
  const search = document.getElementById("search");
  const boxes = Array.from(document.querySelectorAll("#controls input[type=checkbox]"));
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  // Numbers come before text; empty cells come last in both directions.
  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    const [p, q] = [Number.isNaN(x), Number.isNaN(y)];
    if (p !== q) return p - q;
    return sign * (p ? a.localeCompare(b, "en", { numeric: true }) : x - y);
  }

  function sort(column) {
    const up = headers[column].getAttribute("aria-sort") !== "ascending";
    headers.forEach((header, i) => {
      header.setAttribute("aria-sort", i === column ? (up ? "ascending" : "descending") : "none");
    });
    const key = (row) => row.cells[column].dataset.key;
    rows.sort((a, b) => compare(key(a), key(b), up ? 1 : -1));
    body.append(...rows);
  }

  function filter() {
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = wanted.has(row.dataset.verdict) && terms.every((term) => words.get(row).includes(term));
      row.classList.toggle("out", !fits);
      shown += fits;
    }
    const all = `${rows.length} ${rows.length === 1 ? "claim" : "claims"}`;
    document.getElementById("shown").value = shown === rows.length ? all : `${shown} of ${all}`;
    document.getElementById("none").hidden = shown > 0 || rows.length === 0;
  }

  function all() {
    boxes.forEach((box) => { box.checked = true; });
    search.value = "";
    filter();
  }

  headers.forEach((header, i) => header.querySelector("button").addEventListener("click", () => sort(i)));
  boxes.forEach((box) => box.addEventListener("change", filter));
  search.addEventListener("input", filter);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("all").addEventListener("click", all);
  filter();  // going back in the browser restores old choices

  // What a tile stands for, beside the tile that is pointed at or has the focus.
  const tip = document.getElementById("tip");
  function point(tile) {
    tip.hidden = !tile;
    if (!tile) return;
    tip.textContent = tile.dataset.tip;
    const box = tile.getBoundingClientRect(), below = box.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.top = `${below ? box.bottom + 6 : box.top - 6 - tip.offsetHeight}px`;
    tip.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  }
  for (const kind of ["mouseover", "focusin"]) {
    document.addEventListener(kind, (event) => point(event.target.closest("a.tile")));
  }
  for (const kind of ["scroll", "focusout"]) addEventListener(kind, () => point(null), { passive: true });
})();
