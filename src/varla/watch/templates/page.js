"use strict";
// The page's controls and panels. `microscope` is there for the console, too: microscope.state(0, 0, 0, 5).S

const data = JSON.parse(document.getElementById("data").textContent);
const names = data.tokens.map((token) => token.text), T = names.length;
const find = (id) => document.getElementById(id);
const PACE = 140;   // milliseconds a token while playing
const SLICE = 12;   // milliseconds of computing between two pictures
const chosen = { t: T - 1, s: 0, layer: null, head: 0 };
const replays = new Map();
let colours = null, timer = null, drawing = false, working = false;

class Column {
  constructor(model, place) {
    this.model = model;
    this.place = place;
    this.root = find("model").content.cloneNode(true).firstElementChild;
    find("models").append(this.root);
    this.part = (selector) => this.root.querySelector(selector);
    this.part("details").addEventListener("toggle", redraw);
    this.map = this.part(".recall canvas");
    this.map.addEventListener("pointermove", (event) => this.point(event, false));
    this.map.addEventListener("pointerdown", (event) => this.point(event, true));
    this.map.addEventListener("pointerleave", () => this.describe(chosen.s, chosen.t));
    const { bits, left_out: left } = model;
    const about = [left ? `${left} more layer${left === 1 ? " is" : "s are"} not in this page.` : "", bits < 16 ? `Inputs are rounded to ${bits} bits.` : ""];
    this.part(".about").textContent = about.filter(Boolean).join(" ");
    this.drawn = 0;
  }

  // The head that is shown, or why there is none.
  choose() {
    const layer = this.model.layers.find((each) => each.index === chosen.layer);
    const missing = !layer ? `This model has no layer ${chosen.layer} with a memory matrix in this page.`
      : chosen.head >= layer.H ? `Layer ${layer.index} of this model has ${layer.H} heads: there is no head ${chosen.head}.` : "";
    this.part(".missing").textContent = missing;
    this.part(".missing").hidden = !missing;
    this.part(".panels").hidden = Boolean(missing);
    const kind = layer ? layer.mechanism : this.model.layers[0].mechanism;
    this.part("h2").replaceChildren(this.model.name === kind ? kind : `${this.model.name} `, Object.assign(document.createElement("span"), { textContent: this.model.name === kind ? "" : kind }));
    this.drawn = 0;
    this.replay = null;
    if (missing) return;
    const key = `${this.place}/${layer.index}/${chosen.head}`;
    if (!replays.has(key)) replays.set(key, new Replay(layer, chosen.head, T));
    this.replay = replays.get(key);
    const lacksA = this.replay.rule.lambda0 === null;
    this.part(".A").hidden = this.part(".spectrum").hidden = lacksA;
    this.part(".S").classList.toggle("alone", lacksA);
    this.readings();
  }

  readings() {
    this.curves = Object.entries(this.replay.readings).map(([name, values]) => {
      const figure = document.createElement("figure"), title = document.createElement("h3");
      const canvas = document.createElement("canvas"), value = document.createElement("b");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${MEANINGS[name]}, over the tokens`);
      title.title = MEANINGS[name];
      title.append(MEANINGS[name], value);
      figure.append(title, canvas);
      return { figure, canvas, value, values };
    });
    this.part(".readings").replaceChildren(...this.curves.map((each) => each.figure));
  }

  point(event, pressed) {
    const box = this.map.getBoundingClientRect(), { left, cell } = mapFrame(box.width, T);
    const t = Math.floor((event.clientX - box.left - left) / cell), s = Math.floor((event.clientY - box.top) / cell);
    if (t < 0 || s < 0 || t >= T || s >= T) return;
    if (pressed) go({ t: Math.max(t, s), s });
    this.describe(s, t);
  }

  describe(s, t) {
    if (!this.replay) return;
    const at = s * T + t, word = s <= t ? WORDS[this.replay.word[at]] : "";
    const key = `Key of token ${s + 1} “${names[s]}”, asked after token ${t + 1} “${names[t]}”`;
    this.part(".readout").textContent = word
      ? `${key}: ${word} (cosine ${this.replay.cosine[at].toFixed(2)}, error ${number(this.replay.error[at])}).`
      : `${key}: not read yet.`;
  }

  // [right, fading, overwritten, never held] after token t.
  counts(t) {
    const found = [0, 0, 0, 0];
    for (let s = 0; s <= t; s++) found[this.replay.word[s * T + t] - 1]++;
    return found;
  }

  draw() {
    const replay = this.replay, { t, s } = chosen;
    this.say(t);
    if (!replay || replay.done <= t) return;
    if (this.drawn !== replay.done) {
      this.picture = bitmap(T, T, answerColours(replay, colours));
      this.drawn = replay.done;
    }
    drawMap(this.map, this.picture, names, t, s, colours);
    const counted = this.counts(t).map((n, i) => `${n} ${WORDS[i + 1]}`).join(", ");
    this.map.setAttribute("aria-label", `Map of ${T} by ${T} tokens. After token ${t + 1}: ${counted}. The table below has the numbers.`);
    this.describe(s, t);
    this.drawAsked(replay.at(t));
    this.drawState(replay.at(t));
    for (const { canvas, value, values } of this.curves) {
      value.textContent = number(values[t]);
      drawCurve(canvas, values, t, replay.done, colours);
    }
    if (this.part("details").open) this.table(t);
  }

  drawAsked(state) {
    const { t, s } = chosen, canvas = this.part(".ask canvas"), note = this.part(".ask .note");
    canvas.style.visibility = s > t ? "hidden" : "visible";
    if (s > t) {
      note.textContent = `Token ${s + 1} “${names[s]}” has not been read yet.`;
      return;
    }
    const at = s * T + t, replay = this.replay;
    const text = `Token ${s + 1} “${names[s]}” after ${t - s} more token${t - s === 1 ? "" : "s"}: ${WORDS[replay.word[at]]}, cosine ${replay.cosine[at].toFixed(2)}, error ${number(replay.error[at])}.`;
    note.textContent = text;
    canvas.setAttribute("aria-label", `The value of the key, and what the memory answers. ${text}`);
    drawStrips(canvas, ["its value", "the answer"], [row(replay.v, s, replay.Dv), replay.answer(state, s)], colours);
  }

  drawState(state) {
    const { D, Dv, rule, largest, readings } = this.replay, t = chosen.t;
    drawMatrix(this.part(".S canvas"), state.S, Dv, D, largest.S, colours);
    this.part(".S canvas").setAttribute("aria-label", `S, ${Dv} by ${D} numbers, norm ${number(readings["|S|"][t])}`);
    this.part(".S .range").textContent = `orange −${number(largest.S)}, blue ${number(largest.S)}`;
    if (!state.A) return;
    const found = eigenvalues(state.A, D), span = `from ${number(found[0])} to ${number(found[D - 1])}`;
    drawMatrix(this.part(".A canvas"), state.A, D, D, largest.A, colours);
    this.part(".A canvas").setAttribute("aria-label", `A, ${D} by ${D} numbers, norm ${number(readings["|A|"][t])}`);
    this.part(".A .range").textContent = `orange −${number(largest.A)}, blue ${number(largest.A)}`;
    drawSpectrum(this.part(".spectrum canvas"), found, 1 / rule.lambda0, colours);
    this.part(".spectrum canvas").setAttribute("aria-label", `${D} eigenvalues of A ${span}; they began at ${number(1 / rule.lambda0)}`);
  }

  say(t) {
    const said = this.model.says[t], answer = data.tokens[t].answer;
    this.part(".said").textContent = said === null ? "" : answer === null ? `It expects “${said}” next.`
      : `Asked here: the right answer is ${answer}, the model says ${said}${said === answer ? ". Right." : ". Wrong."}`;
  }

  table(t) {
    const rows = Array.from({ length: t + 1 }, (_, s) => {
      const found = document.createElement("tr"), at = s * T + t;
      const head = Object.assign(document.createElement("th"), { scope: "row", textContent: `${s + 1} ${names[s]}` });
      const cells = [WORDS[this.replay.word[at]], this.replay.cosine[at].toFixed(2), number(this.replay.error[at])];
      found.append(head, ...cells.map((textContent) => Object.assign(document.createElement("td"), { textContent })));
      return found;
    });
    this.part("tbody").replaceChildren(...rows);
  }
}

const MEANINGS = {
  "|S|": "|S|, size", "|A|": "|A|, what is free", "k·a": "k · a, overlap",
  beta: "beta, write", decay: "decay, S keeps", strength: "strength of u",
};

function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  columns.forEach((column) => column.draw());
  const { t, s } = chosen;
  find("now").value = t;
  find("key").value = s;
  for (const [id, i] of [["now", t], ["key", s]]) {
    find(`${id}-text`).textContent = `${i + 1} of ${T} “${names[i]}”`;
    find(id).setAttribute("aria-valuetext", `token ${i + 1} of ${T}: ${names[i]}`);
  }
  drawTokens(t);
  const parts = columns.filter((column) => column.replay && column.replay.done > t).map((column) => {
    const [right, fading, overwritten, never] = column.counts(t);
    const who = columns.length > 1 ? column.model.name : "the memory";
    return `${who} answers ${right} right; ${fading} fading, ${overwritten} overwritten, ${never} never held`;
  });
  const whole = columns.every((column) => !column.replay || column.replay.done === T);
  const asked = t === 0 ? "Of 1 key so far" : `Of ${t + 1} keys so far`;
  find("summary").textContent = parts.length ? `Token ${t + 1} of ${T}, “${names[t]}”. ${asked}, ${parts.join(". ")}.` : "Computing…";
  document.documentElement.toggleAttribute("data-ready", whole);
}

function drawTokens(t) {
  chips.forEach(({ button, bars }, s) => {
    button.classList.toggle("later", s > t);
    button.tabIndex = s === t ? 0 : -1;
    if (s === t) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    const words = columns.map(({ replay }) => (replay && s <= t && replay.done > t ? replay.word[s * T + t] : 0));
    words.forEach((word, i) => { bars[i].dataset.word = word; });
    button.setAttribute("aria-label", [`token ${s + 1}, ${names[s]}`, ...words.filter(Boolean).map((word) => WORDS[word])].join(", "));
  });
  const box = find("tokens"), button = chips[t].button;
  if (button.offsetTop < box.scrollTop || button.offsetTop + button.offsetHeight > box.scrollTop + box.clientHeight) {
    box.scrollTop = button.offsetTop - box.clientHeight / 2;
  }
}

// Computes what is chosen, a slice at a time: the page stays usable.
function work() {
  const end = performance.now() + SLICE;
  const open = columns.map((column) => column.replay).filter((replay) => replay && replay.done < T);
  for (const replay of open) while (replay.done < T && performance.now() < end) replay.advance();
  working = open.some((replay) => replay.done < T);
  redraw();
  if (working) setTimeout(work);
}

function go(change) {
  Object.assign(chosen, change);
  chosen.t = Math.min(Math.max(chosen.t, 0), T - 1);
  chosen.s = Math.min(Math.max(chosen.s, 0), T - 1);
  redraw();
}

function select() {
  columns.forEach((column) => column.choose());
  if (!working) work();
  redraw();
}

function play(wanted) {
  clearInterval(timer);
  timer = null;
  if (wanted) {
    if (chosen.t === T - 1) go({ t: 0 });
    timer = setInterval(() => (chosen.t < T - 1 ? go({ t: chosen.t + 1 }) : play(false)), PACE);
  }
  find("play").textContent = timer === null ? "Play" : "Pause";
  find("summary").setAttribute("aria-live", timer === null ? "polite" : "off");
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  find("theme").textContent = name === "dark" ? "Light" : "Dark";
  find("theme").setAttribute("aria-label", `Use ${name === "dark" ? "light" : "dark"} colours`);
  colours = palette();
  columns.forEach((column) => { column.drawn = 0; });
  redraw();
}

function option(value, textContent) {
  return Object.assign(document.createElement("option"), { value, textContent });
}

function fillHeads() {
  const most = Math.max(...data.models.flatMap((model) => model.layers.filter((each) => each.index === chosen.layer).map((each) => each.H)));
  chosen.head = Math.min(chosen.head, most - 1);
  find("head").replaceChildren(...Array.from({ length: most }, (_, i) => option(i, i)));
  find("head").value = chosen.head;
}

function fillLayers() {
  const layers = new Map();
  for (const model of data.models) {
    for (const { index, mechanism } of model.layers) layers.set(index, [...new Set([...(layers.get(index) || []), mechanism])]);
  }
  const indices = [...layers.keys()].sort((a, b) => a - b);
  find("layer").replaceChildren(...indices.map((index) => option(index, `${index} ${layers.get(index).join(", ")}`)));
  chosen.layer = indices[0];
  fillHeads();
}

function press(event) {
  const inside = event.target.closest("select, input, summary, .wide");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = { ArrowLeft: { t: chosen.t - 1 }, ArrowRight: { t: chosen.t + 1 }, ArrowUp: { s: chosen.s - 1 },
    ArrowDown: { s: chosen.s + 1 }, Home: { t: 0 }, End: { t: T - 1 } };
  if (!inside && moves[event.key]) {
    go(moves[event.key]);
    if (document.activeElement.closest(".tokens") && "t" in moves[event.key]) chips[chosen.t].button.focus();
  } else if (!inside && event.key === " " && !event.target.closest("button")) {
    play(timer === null);
  } else {
    return;
  }
  event.preventDefault();
}

const columns = data.models.map((model, place) => new Column(model, place));
const chips = names.map((name, s) => {
  const button = document.createElement("button"), bars = columns.map(() => document.createElement("i"));
  button.type = "button";
  button.append(name, ...bars);
  button.addEventListener("click", () => go({ t: s }));
  return { button, bars };
});
find("tokens").append(...chips.map((chip) => chip.button));
find("now").addEventListener("input", (event) => go({ t: Number(event.target.value) }));
find("key").addEventListener("input", (event) => go({ s: Number(event.target.value) }));
find("back").addEventListener("click", () => go({ t: chosen.t - 1 }));
find("forward").addEventListener("click", () => go({ t: chosen.t + 1 }));
find("play").addEventListener("click", () => play(timer === null));
find("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
find("layer").addEventListener("change", (event) => {
  chosen.layer = Number(event.target.value);
  fillHeads();
  select();
});
find("head").addEventListener("change", (event) => {
  chosen.head = Number(event.target.value);
  select();
});
document.addEventListener("keydown", press);
window.addEventListener("resize", redraw);
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
// A site that shows this page in a frame has a heading of its own, and may choose the colours.
document.documentElement.toggleAttribute("data-framed", window.parent !== window);
window.addEventListener("message", ({ source, data }) => {
  if (source === window.parent && ["light", "dark"].includes(data?.theme)) theme(data.theme);
});

const microscope = {
  // The replay of a head, computed to the last token.
  head(model, layer, h) {
    const found = new Replay(data.models[model].layers.find((each) => each.index === layer), h, T);
    while (found.done < T) found.advance();
    return found;
  },
  // {S, A, z, ...} after token t.
  state(model, layer, h, t) {
    return this.head(model, layer, h).at(t);
  },
};

// What an address asks for: page.html#layer=1&head=2&token=12&key=4. Tokens count from 1, as they are shown.
function start(asked) {
  const [layer, head, token, key] = ["layer", "head", "token", "key"].map((name) => Number.parseInt(asked.get(name), 10));
  for (const [id, wanted] of [["layer", layer], ["head", head]]) {
    if (![...find(id).options].some((each) => each.value === String(wanted))) continue;
    find(id).value = chosen[id] = wanted;
    if (id === "layer") fillHeads();
  }
  go({ t: token ? token - 1 : chosen.t, s: key ? key - 1 : chosen.s });
}

fillLayers();
start(new URLSearchParams(location.hash.slice(1)));
theme(dark.matches ? "dark" : "light");
select();
