"use strict";
// One head's memory, token by token: the recurrence of docs/family.md, with the symbols used there. No page, no DOM.

const WORDS = ["", "right", "fading", "overwritten", "never held"];
const RIGHT = 0.3;    // |answer - value| / |value| up to which an answer is right
const SAME = 0.8;     // cosine from which on an answer points to the value
const EVERY = 16;     // tokens between two states that are kept
const SMALLEST = 1e-4;  // the least divisor of linear attention

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

// The input `name` of head h: T rows, each of so many numbers; null if the mechanism has no such input.
function input(layer, name, h, T) {
  const found = layer.inputs[name];
  if (found === undefined) return null;
  if (typeof found === "string") return input(layer, found, h, T);
  if (!found.bits) return Float64Array.from(new Float32Array(bytes(found.data)).subarray(h * T, (h + 1) * T));
  const whole = found.bits === 16 ? new Int16Array(bytes(found.data)) : new Int8Array(bytes(found.data));
  const scale = new Float32Array(bytes(found.scale));
  const width = whole.length / scale.length;
  const rows = Float64Array.from(whole.subarray(h * T * width, (h + 1) * T * width));
  return rows.map((x, i) => x * scale[h * T + Math.floor(i / width)]);
}

function row(rows, i, width) {
  return rows.subarray(i * width, (i + 1) * width);
}

function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}

function norm(x) {
  return Math.sqrt(dot(x, x));
}

// matrix [n, x.length] times x.
function times(matrix, x) {
  const found = new Float64Array(matrix.length / x.length);
  for (let i = 0; i < found.length; i++) found[i] = dot(row(matrix, i, x.length), x);
  return found;
}

// matrix += factor x y^T.
function addOuter(matrix, factor, x, y) {
  for (let i = 0; i < x.length; i++) {
    const scaled = factor * x[i], at = i * y.length;
    for (let j = 0; j < y.length; j++) matrix[at + j] += scaled * y[j];
  }
}

// The inverse of a symmetric positive definite matrix [n, n], by Gauss-Jordan: no pivots are needed.
function inverse(matrix, n) {
  const found = Float64Array.from(matrix);
  for (let p = 0; p < n; p++) {
    const pivot = 1 / found[p * n + p];
    found[p * n + p] = 1;
    for (let j = 0; j < n; j++) found[p * n + j] *= pivot;
    for (let i = 0; i < n; i++) {
      if (i === p) continue;
      const factor = found[i * n + p];
      found[i * n + p] = 0;
      for (let j = 0; j < n; j++) found[i * n + j] -= factor * found[p * n + j];
    }
  }
  return found;
}

// (x I + y A)^-1 A, symmetric as A is.
function blended(A, x, y, n) {
  const sum = A.map((a, i) => y * a + (i % (n + 1) === 0 ? x : 0));
  const solved = inverse(sum, n), found = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) found[i * n + j] = found[j * n + i] = dot(row(solved, i, n), row(A, j, n));
  }
  return found;
}

// The eigenvalues of a symmetric matrix, largest first: Householder reflections make it tridiagonal, then bisection.
function eigenvalues(matrix, n) {
  const A = Float64Array.from(matrix), beside = new Float64Array(n);  // beside[i]: between i - 1 and i
  for (let c = 0; c < n - 2; c++) {
    const v = new Float64Array(n);
    for (let i = c + 1; i < n; i++) v[i] = A[i * n + c];
    const length = norm(v) * (v[c + 1] > 0 ? -1 : 1);
    beside[c + 1] = length;
    v[c + 1] -= length;
    const square = dot(v, v);
    if (square === 0) continue;
    const p = times(A, v).map((x) => 2 * x / square);
    const half = dot(v, p) / square;
    const w = p.map((x, i) => x - half * v[i]);
    addOuter(A, -1, v, w);
    addOuter(A, -1, w, v);
  }
  if (n > 1) beside[n - 1] = A[n * n - 2];
  const diagonal = Float64Array.from({ length: n }, (_, i) => A[i * (n + 1)]);
  const below = (x) => {  // how many eigenvalues are below x: Sturm's sequence
    let count = 0, q = 1;
    for (let i = 0; i < n; i++) {
      q = diagonal[i] - x - (i ? beside[i] * beside[i] / (q || 1e-300) : 0);
      if (q < 0) count++;
    }
    return count;
  };
  const reach = Math.max(...diagonal.map((x, i) => Math.abs(x) + Math.abs(beside[i]) + Math.abs(beside[i + 1] || 0)));
  return Float64Array.from({ length: n }, (_, place) => {
    let low = -reach, high = reach;
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (below(middle) >= n - place) high = middle; else low = middle;
    }
    return (low + high) / 2;
  });
}

class Replay {
  constructor(layer, h, T) {
    Object.assign(this, { T, D: layer.D, Dv: layer.Dv, rule: layer.rule, mechanism: layer.mechanism });
    for (const name of ["k", "v", "u", "beta", "decay", "strength"]) this[name] = input(layer, name, h, T);
    this.perChannel = this.decay !== null && this.decay.length > T;
    this.done = 0;                              // tokens of which the whole map and all readings are known
    this.kept = [];                             // states after 0, EVERY, 2 EVERY, ... tokens
    this.now = this.fresh();
    this.held = new Uint8Array(T);              // whether a key was ever answered right or fading
    this.cosine = new Float32Array(T * T);      // [s, t]: answer to key s after token t, and its value
    this.error = new Float32Array(T * T);
    this.word = new Uint8Array(T * T);          // an index into WORDS
    this.answers = new Float64Array(T * this.Dv);
    this.readings = { "|S|": new Float64Array(T) };
    if (this.now.A) this.readings["|A|"] = new Float64Array(T);
    if (this.rule.gain) this.readings["k·a"] = new Float64Array(T);
    for (const name of ["beta", "decay", "strength"]) {
      if (this[name] && typeof layer.inputs[name] !== "string") {
        this.readings[name] = this.perChannel && name === "decay" ? this.meanDecay() : this[name];
      }
    }
    this.largest = { S: 0, A: 0 };              // absolute entries, over all tokens so far
  }

  fresh() {
    const { D, Dv, rule } = this;
    const A = rule.lambda0 === null ? null : new Float64Array(D * D);
    if (A) for (let i = 0; i < D; i++) A[i * (D + 1)] = 1 / rule.lambda0;
    return { t: 0, S: new Float64Array(Dv * D), A, z: new Float64Array(D), logC: 0 };
  }

  copy(state) {
    const { t, S, A, z, logC } = state;
    return { t, S: S.slice(), A: A && A.slice(), z: z.slice(), logC };
  }

  meanDecay() {
    return Float64Array.from({ length: this.T }, (_, t) => dot(this.decayAt(t), new Float64Array(this.Dv).fill(1 / this.Dv)));
  }

  decayAt(t) {  // one factor for every row of S
    if (this.perChannel) return row(this.decay, t, this.Dv);
    return new Float64Array(this.Dv).fill(this.decay ? this.decay[t] : 1);
  }

  // A after one more token.
  penalise(state) {
    const { D, rule, u } = this, t = state.t;
    const log = this.decay ? Math.log(this.decay[t]) : 0;
    if (rule.forget_at) {
      if (t > 0 && t % rule.beat === 0) {
        const C = Math.exp(state.logC);
        state.A = rule.forget_at === "beat"
          ? blended(state.A, C, rule.lambda0 * (1 - C), D)
          : blended(state.A, 1, rule.lambda0 * (1 - C), D);
        state.logC = 0;
      }
      state.logC += log;
      if (rule.forget_at === "token") state.A = state.A.map((x) => x * Math.exp(-log));
    }
    if (u) {
      const w = this.strength ? this.strength[t] : rule.penalty;
      const Au = times(state.A, row(u, t, D));
      addOuter(state.A, -w / (1 + w * dot(row(u, t, D), Au)), Au, Au);
    }
    if (rule.refresh && (t + 1) % rule.refresh[0] === 0) {
      for (let i = 0; i < D; i++) state.A[i * (D + 1)] += rule.refresh[1];
    }
  }

  direction(state, k) {
    const { gain } = this.rule;
    if (!gain) return k;
    const a = times(state.A, k);
    const length = gain === "unit" ? norm(a) : gain === "projection" ? dot(k, a) : 1;
    return a.map((x) => x / (length || 1));
  }

  // Reads the next token into the state. Returns the write: S <- d S + e a^T.
  step(state) {
    const { D, Dv, rule } = this, t = state.t;
    const k = row(this.k, t, D), v = row(this.v, t, Dv), d = this.decayAt(t);
    if (state.A) this.penalise(state);
    const a = this.direction(state, k), strength = this.beta ? this.beta[t] : 1;
    const held = times(state.S, k);
    const e = v.map((x, i) => strength * (rule.error ? x - (rule.decay_first ? d[i] : 1) * held[i] : x));
    for (let i = 0; i < Dv; i++) if (d[i] !== 1) for (let j = 0; j < D; j++) state.S[i * D + j] *= d[i];
    addOuter(state.S, 1, e, a);
    for (let j = 0; j < D; j++) state.z[j] += k[j];
    state.t++;
    return { a, e, d };
  }

  // What the memory answers for key s.
  answer(state, s) {
    const k = row(this.k, s, this.D), { reads } = this.rule;
    if (reads === "SA") return times(state.S, times(state.A, k));
    const found = times(state.S, k);
    if (reads === "S") return found;
    const divisor = Math.max(dot(state.z, k), SMALLEST);
    return found.map((x) => x / divisor);
  }

  // How token t changed W = S A, if no beat came before it: W <- W + e a^T with a = A k, as in recursive least squares.
  fitted(state, t) {
    const k = row(this.k, t, this.D), a = times(state.A, k), beta = this.beta[t];
    const left = 1 - beta * dot(k, a), answer = this.answer(state, t);  // v - W k is `left` times what it was
    return { a, e: row(this.v, t, this.Dv).map((x, i) => beta * (x - answer[i]) / left), d: new Float64Array(this.Dv).fill(1) };
  }

  // Reads one more token, and finds what the memory then answers for every key so far.
  advance() {
    const { now, D, Dv, T, rule } = this, t = this.done;
    if (t % EVERY === 0) this.kept.push(this.copy(now));
    const write = this.step(now), fits = rule.reads === "SA";
    const anew = fits && t % rule.beat === 0;  // S A changes by more than a write
    const { a, e, d } = fits && !anew ? this.fitted(now, t) : write;
    for (let s = 0; s <= t; s++) {
      const r = row(this.answers, s, Dv), k = row(this.k, s, D);
      if (anew || s === t) {
        r.set(fits ? this.answer(now, s) : times(now.S, k));
      } else {  // S changed by e a^T, so S k changes by e (a . k)
        const share = dot(a, k);
        for (let i = 0; i < Dv; i++) r[i] = d[i] * r[i] + e[i] * share;
      }
      this.judge(s, t, r, rule.reads === "S/z" ? 1 / Math.max(dot(now.z, k), SMALLEST) : 1);
    }
    this.readings["|S|"][t] = norm(now.S);
    if (now.A) this.readings["|A|"][t] = norm(now.A);
    if (rule.gain) this.readings["k·a"][t] = dot(row(this.k, t, D), write.a);
    for (const name of ["S", "A"]) {
      if (now[name]) for (const x of now[name]) this.largest[name] = Math.max(this.largest[name], Math.abs(x));
    }
    this.done++;
  }

  judge(s, t, r, factor) {
    const v = row(this.v, s, this.Dv), at = s * this.T + t;
    let product = 0, square = 0, wanted = 0, off = 0;
    for (let i = 0; i < v.length; i++) {
      const x = factor * r[i];
      product += x * v[i];
      square += x * x;
      wanted += v[i] * v[i];
      off += (x - v[i]) * (x - v[i]);
    }
    this.cosine[at] = product / (Math.sqrt(square * wanted) || 1);
    this.error[at] = Math.sqrt(off / (wanted || 1));
    const word = this.error[at] <= RIGHT ? 1 : this.cosine[at] >= SAME ? 2 : this.held[s] ? 3 : 4;
    if (word <= 2) this.held[s] = 1;
    this.word[at] = word;
  }

  // The state after token t, counted from 0.
  at(t) {
    const from = this.kept[Math.floor(t / EVERY)];
    if (!this.last || this.last.t > t + 1 || this.last.t < from.t) this.last = this.copy(from);
    while (this.last.t <= t) this.step(this.last);
    return this.last;
  }
}
