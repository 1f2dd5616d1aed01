"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const links = new Map(Array.from(document.querySelectorAll(".contents a"), (a) => [a.hash.slice(1), a]));
  const drawn = new Map();  // chart: the width it was drawn for

  // The legend below a chart gets as many columns as fit, and names longer than the chart are cut.
  function fitted(spec, width) {
    const layers = spec.layer ?? [spec];
    const names = layers.flatMap((layer) => layer.encoding?.color?.scale?.domain ?? []);
    const lengths = [...new Set(names)].map((name) => 7 * String(name).length + 36);
    const total = lengths.reduce((sum, length) => sum + length, 48);
    const columns = total <= width ? lengths.length : Math.max(1, Math.floor((width - 48) / Math.max(...lengths)));
    return { ...spec, config: { ...spec.config, legend: { ...spec.config.legend, columns, labelLimit: width - 48 } } };
  }

  async function draw(id) {
    const place = document.getElementById(id), width = place.clientWidth;
    if (place.closest("details:not([open])") || !width || drawn.get(id) === width) return;
    drawn.set(id, width);
    try {
      await vegaEmbed(place, fitted(specs[id], width), { actions: false, renderer: "svg" });
    } catch (error) {
      place.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  }

  async function drawAll() {
    for (const id of Object.keys(specs)) await draw(id);
  }

  // A link shows its target: folds around it open, and scripts of the page may listen for "arrive".
  function arrive() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.dispatchEvent(new CustomEvent("arrive", { bubbles: true }));
    target.scrollIntoView();
  }

  // The contents mark the section that is read: the last one that begins above the upper third of the window.
  function mark() {
    let here = null;
    for (const id of links.keys()) {
      if (document.getElementById(id).getBoundingClientRect().top < innerHeight / 3) here = id;
    }
    for (const [id, link] of links) {
      const was = link.hasAttribute("aria-current");
      if (id === here && !was) {
        link.setAttribute("aria-current", "true");
        const list = link.closest("ol"), box = link.getBoundingClientRect(), around = list.getBoundingClientRect();
        if (box.left < around.left || box.right > around.right) list.scrollLeft += box.left - around.left - 16;
      } else if (id !== here && was) link.removeAttribute("aria-current");
    }
  }

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { drawAll(); mark(); }, 150);
  });
  addEventListener("scroll", mark, { passive: true });
  addEventListener("hashchange", arrive);
  addEventListener("beforeprint", () => {  // paper has no folds
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open) for (const chart of event.target.querySelectorAll(".chart")) draw(chart.id);
    mark();
  }, true);
  mark();
  drawAll().then(() => {
    arrive();  // charts have moved the elements below them
    document.documentElement.dataset.drawn = "yes";
  });
})();
