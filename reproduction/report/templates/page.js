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

  // A link to a claim shows it, even if a filter hides it.
  function arrive() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.classList.contains("out")) all();
    target.scrollIntoView();
  }

  headers.forEach((header, i) => header.querySelector("button").addEventListener("click", () => sort(i)));
  boxes.forEach((box) => box.addEventListener("change", filter));
  search.addEventListener("input", filter);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("all").addEventListener("click", all);
  window.addEventListener("hashchange", arrive);
  filter(); // going back in the browser restores old choices

  async function draw() {
    const specs = JSON.parse(document.getElementById("specs").textContent);
    for (const [id, spec] of Object.entries(specs)) {
      const place = document.getElementById(id);
      const narrow = place.clientWidth < 480;
      const config = { ...spec.config, legend: { ...spec.config.legend, columns: narrow ? 2 : 4 } };
      try {
        await vegaEmbed(place, { ...spec, config }, { actions: false, renderer: "svg" });
      } catch (error) {
        place.textContent = `This chart could not be drawn: ${error.message}`;
        console.error(error);
      }
    }
    arrive(); // charts have moved the elements below them
    document.documentElement.dataset.drawn = "yes";
  }
  draw();
})();
