"use strict";
// Pictures on canvases, in the colours of the page's style.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const number = (x) => (x === 0 ? "0" : Math.abs(x) >= 0.001 && Math.abs(x) < 10000 ? Number(x.toPrecision(3)).toString() : x.toExponential(1));

function palette() {
  const found = Object.fromEntries(["text", "faint", "line", "back", "accent", "fading", "warm", "overwritten", "never"].map((name) => [name, css(name)]));
  return { ...found, words: ["back", "accent", "fading", "overwritten", "never"].map((name) => rgb(found[name])) };
}

// The context of a canvas, cleared, in CSS pixels; the canvas has the pixels of the screen.
function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

// A picture of `columns` x `rows` pixels; colour(i) gives [r, g, b] of pixel i.
function bitmap(columns, rows, colour) {
  const found = document.createElement("canvas");
  found.width = columns;
  found.height = rows;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < columns * rows; i++) {
    image.data.set(colour(i), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  found.getContext("2d").putImageData(image, 0, 0);
  return found;
}

// Colours of numbers around 0. The square root makes small entries visible.
function diverging(values, largest, colours) {
  const back = rgb(colours.back), up = rgb(colours.accent), down = rgb(colours.warm);
  return (i) => {
    const share = Math.sqrt(Math.min(1, Math.abs(values[i]) / (largest || 1)));
    const end = values[i] < 0 ? down : up;
    return back.map((x, c) => Math.round(x + share * (end[c] - x)));
  };
}

function drawMatrix(canvas, values, rows, columns, largest, colours) {
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const { context, width, height } = prepared(canvas);
  context.drawImage(bitmap(columns, rows, diverging(values, largest, colours)), 0, 0, width, height);
  context.strokeStyle = colours.line;
  context.strokeRect(0.5, 0.5, width - 1, height - 1);
}

// Rows of numbers, each with a name: the wanted value and the answer.
function drawStrips(canvas, names, strips, colours) {
  const { context, width, height } = prepared(canvas);
  const left = 72, each = height / strips.length;
  const largest = Math.max(...strips.flatMap((strip) => Array.from(strip, Math.abs)));
  strips.forEach((strip, i) => {
    context.fillStyle = colours.faint;
    context.textBaseline = "middle";
    context.fillText(names[i], 0, (i + 0.5) * each);
    context.drawImage(bitmap(strip.length, 1, diverging(strip, largest, colours)), left, i * each + 2, width - left, each - 4);
    context.strokeStyle = colours.line;
    context.strokeRect(left + 0.5, i * each + 2.5, width - left - 1, each - 5);
  });
}

// Eigenvalues, largest first, on a logarithmic axis; `start` is where they all began.
function drawSpectrum(canvas, values, start, colours) {
  const { context, width, height } = prepared(canvas);
  const positive = Array.from(values).map((x) => Math.max(x, 1e-12));
  const top = Math.log10(Math.max(start, ...positive)), bottom = Math.min(Math.log10(Math.min(start, ...positive)), top - 0.5);
  const left = 46, y = (x) => 8 + (height - 16) * (top - Math.log10(x)) / (top - bottom);
  context.fillStyle = colours.faint;
  context.textBaseline = "middle";
  for (const x of [10 ** top, 10 ** bottom]) context.fillText(number(x), 0, y(x));
  context.strokeStyle = colours.line;
  context.beginPath();
  context.moveTo(left, y(start));
  context.lineTo(width, y(start));
  context.stroke();
  context.fillStyle = colours.accent;
  const each = (width - left) / positive.length;
  positive.forEach((x, i) => context.fillRect(left + i * each, y(x), Math.max(1, each - 1), height - 4 - y(x)));
}

// A reading over the tokens, faint after token t.
function drawCurve(canvas, values, t, known, colours) {
  const { context, width, height } = prepared(canvas);
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < known; i++) [low, high] = [Math.min(low, values[i]), Math.max(high, values[i])];
  const flat = high - low < 1e-9 * Math.max(1, Math.abs(high));
  const x = (i) => 4 + (width - 8) * (values.length > 1 ? i / (values.length - 1) : 0.5);
  const y = (value) => (flat ? height / 2 : 5 + (height - 10) * (high - value) / (high - low));
  const line = (from, to, colour, thickness) => {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.beginPath();
    for (let i = from; i <= to; i++) context.lineTo(x(i), y(values[i]));
    context.stroke();
  };
  line(Math.min(t, known - 1), known - 1, colours.never, 1);
  line(0, Math.min(t, known - 1), colours.accent, 1.6);
  context.fillStyle = colours.accent;
  context.beginPath();
  context.arc(x(t), y(values[Math.min(t, known - 1)]), 3.2, 0, 7);
  context.fill();
}

// Where the map stands on its canvas: names of tokens on the left if a row is high enough for them.
function mapFrame(width, T) {
  const left = (width - 58) / T >= 11 ? 58 : 0;
  return { left, side: width - left, cell: (width - left) / T };
}

// Colours of the map. An answer that is something else is stronger the further it points from the value.
function answerColours(replay, colours) {
  const back = rgb(colours.back);
  return (i) => {
    const word = replay.word[i], colour = colours.words[word];
    if (word < 3) return colour;
    const share = 0.45 + 0.55 * Math.min(1, Math.max(0, 1 - replay.cosine[i] / SAME));
    return back.map((x, c) => Math.round(x + share * (colour[c] - x)));
  };
}

function drawMap(canvas, picture, names, t, s, colours) {
  const T = names.length, { left, side, cell } = mapFrame(canvas.clientWidth, T);
  canvas.style.height = `${side}px`;
  const { context } = prepared(canvas);
  context.drawImage(picture, left, 0, side, side);
  context.globalAlpha = 0.72;  // what is still to come
  context.fillStyle = colours.back;
  context.fillRect(left + (t + 1) * cell, 0, side - (t + 1) * cell, side);
  context.globalAlpha = 1;
  context.strokeStyle = colours.line;
  context.strokeRect(left + 0.5, 0.5, side - 1, side - 1);
  context.strokeStyle = colours.text;
  context.strokeRect(left + t * cell + 0.5, 0.5, Math.max(1, cell - 1), (t + 1) * cell - 1);
  context.strokeRect(left + s * cell + 0.5, s * cell + 0.5, side - s * cell - 1, Math.max(1, cell - 1));
  if (!left) return;
  context.textBaseline = "middle";
  names.forEach((name, i) => {
    context.fillStyle = i === s ? colours.text : colours.faint;
    context.fillText(name.length > 8 ? `${name.slice(0, 7)}…` : name, 0, (i + 0.5) * cell);
  });
}
