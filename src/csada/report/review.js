"use strict";
// Sections: data, decide (as csada.decisions.Decided), scale (as csada.decisions.elicit), book, view, files.

// -- data ---------------------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const facts = JSON.parse($("facts").textContent);
const { classes, labels, decided: today, names, strength } = facts;
const { TIE, FACTOR, DIGITS, FORMAT, REFERRED } = facts.constants;
const K = classes.length, N = labels.length, MISTAKES = K * (K - 1), SAME = 1e-9, SHOWN = 12;
const p = floats($("probabilities").textContent);
const images = $("images").textContent.trim().split("\n").filter(Boolean);
const sizes = count(labels, labels).filter((_, i) => i % (K + 1) === 0);

function floats(text) {
  const raw = atob(text.trim()), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

// -- decide -------------------------------------------------------------------------------------------------------

/** [N, K]: what predicting each class is expected to cost. */
function expected(costs) {
  const found = new Float64Array(N * K);
  for (let i = 0; i < N; i++) {
    for (let y = 0; y < K; y++) {
      const share = p[i * K + y];
      if (share) for (let z = 0, at = i * K, row = y * K; z < K; z++) found[at + z] += share * costs[row + z];
    }
  }
  return found;
}

const meanCost = (costs) => costs.reduce((sum, cost) => sum + cost / MISTAKES, 0) || 1;

/** [N]: the class of the least criterion; of those that tie the likeliest. delta: what is added to the cost of (y, z). */
function decide(costs, unit, y = 0, z = -1, delta = 0) {
  const found = new Int32Array(N), criterion = new Float64Array(K);
  for (let i = 0, at = 0; i < N; i++, at += K) {
    let least = Infinity;
    for (let k = 0; k < K; k++) {
      const cost = costs[at + k] + (k === z ? p[at + y] * delta : 0);
      criterion[k] = strength * cost + (1 - strength) * unit * (1 - p[at + k]);
      if (criterion[k] < least) least = criterion[k];
    }
    const limit = least + TIE * (least + unit);
    let best = -1;
    for (let k = 0; k < K; k++) if (criterion[k] <= limit && (best < 0 || p[at + k] > p[at + best])) best = k;
    found[i] = best;
  }
  return found;
}

function count(truth, predicted) {
  const found = new Int32Array(K * K);
  for (let i = 0; i < N; i++) found[truth[i] * K + predicted[i]]++;
  return found;
}

const paid = (predicted, costs) => labels.reduce((sum, y, i) => sum + costs[y * K + predicted[i]], 0) / N;
const accuracy = (predicted) => labels.reduce((sum, y, i) => sum + (y === predicted[i]), 0) / N;

/** What happens to the decisions where one cost is wrong by that factor. */
function ifWrong(y, z, factor, of) {
  const delta = (factor - 1) * of.costs[y * K + z];
  const other = decide(of.expected, of.unit + delta / MISTAKES, y, z, delta);
  return { changed: other.reduce((sum, k, i) => sum + (k !== of.chosen[i]), 0), cost: paid(other, of.costs) };
}

// -- scale --------------------------------------------------------------------------------------------------------

const rounded = (cost) => Number(cost.toPrecision(DIGITS));
const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));

/** By Gauss and Jordan, with pivots. */
function inverse(given) {
  const n = given.length, m = given.map((row, i) => [...row, ...row.map((_, j) => Number(i === j))]);
  for (let i = 0; i < n; i++) {
    let pivot = i;
    for (let r = i; r < n; r++) if (Math.abs(m[r][i]) > Math.abs(m[pivot][i])) pivot = r;
    [m[i], m[pivot]] = [m[pivot], m[i]];
    m[i] = m[i].map((value, _, row) => value / row[i]);
    for (let r = 0; r < n; r++) {
      const factor = m[r][i];
      if (r !== i && factor) for (let c = 0; c < 2 * n; c++) m[r][c] -= factor * m[i][c];
    }
  }
  return m.map((row) => row.slice(n));
}

/** Sets of what hangs together, by their first member. */
function components(n, edges) {
  const home = Array.from({ length: n }, (_, i) => new Set([i]));
  for (const [i, j] of edges) {
    const other = home[j];
    if (home[i] !== other) for (const each of other) { home[i].add(each); home[each] = home[i]; }
  }
  return [...new Set(home)];
}

/** Least squares on log-ratios. start: [P] costs; answers: [{first, second, ratio}]; typed: Map of pair to cost. */
function fitScale(start, answers, typed) {
  const used = answers.filter((a) => typed.get(a.first) !== 0 && typed.get(a.second) !== 0);
  const at = new Map([...typed].filter(([, cost]) => cost > 0).map(([pair, cost]) => [pair, Math.log(cost)]));
  const floating = components(start.length, used.map((a) => [a.first, a.second]))
    .filter((together) => together.size > 1 && ![...together].some((pair) => at.has(pair)));
  for (const together of floating) at.set(Math.min(...together), 0);
  const compared = [...new Set(used.flatMap((a) => [a.first, a.second]))].sort((a, b) => a - b);
  const free = compared.filter((pair) => !at.has(pair));
  const normal = zeros(free.length, free.length), right = new Array(free.length).fill(0), design = [];
  for (const { first, second, ratio } of used) {
    let said = Math.log(ratio);
    const row = [];
    for (const [sign, pair] of [[1, first], [-1, second]]) {
      if (at.has(pair)) said -= sign * at.get(pair);
      else row.push([free.indexOf(pair), sign]);
    }
    for (const [i, s] of row) { right[i] += s * said; for (const [j, t] of row) normal[i][j] += s * t; }
    design.push(row);
  }
  const solved = inverse(normal);
  free.forEach((pair, i) => at.set(pair, solved[i].reduce((sum, value, j) => sum + value * right[j], 0)));
  for (const together of floating) {
    const before = [...together].map((pair) => start[pair]).filter((cost) => cost > 0);
    const shift = Math.log(before.length ? Math.min(...before) : 1) - Math.min(...[...together].map((pair) => at.get(pair)));
    for (const pair of together) at.set(pair, at.get(pair) + shift);
  }
  const costs = start.map((_, i) => typed.get(i) ?? NaN);
  for (const pair of compared) costs[pair] = typed.get(pair) ?? Math.exp(at.get(pair));
  const residuals = answers.map((a) => (used.includes(a) ? Math.log(a.ratio) - at.get(a.first) + at.get(a.second) : NaN));
  const own = new Map(used.map((a, k) => [a, design[k].reduce((sum, [i, s]) => design[k].reduce((t, [j, u]) => t + s * u * solved[i][j], sum), 0)]));
  return { costs, residuals, leverage: answers.map((a) => own.get(a) ?? 1) };
}

/** The answer that the others contradict most, then the next without it, until all agree within FACTOR. */
function contradictions(start, answers, typed) {
  const left = [...answers], found = [];
  while (left.length) {
    const scale = fitScale(start, left, typed);
    const off = left.map((_, k) => (scale.leverage[k] < 1 - SAME ? scale.residuals[k] / (1 - scale.leverage[k]) || 0 : 0));
    const most = Math.max(...off.map(Math.abs));
    if (most <= Math.log(FACTOR)) break;
    const worst = off.findLastIndex((value) => Math.abs(value) >= most - SAME), [answer] = left.splice(worst, 1);
    found.push({ answer, others: chain(answer, left, typed), implied: answer.ratio * Math.exp(-off[worst]) });
  }
  return found;
}

/** A shortest way over answers from one pair to the other; between typed costs it takes none. */
function chain(answer, answers, typed) {
  const ways = new Map([[answer.first, []]]), queue = [answer.first], fixed = [...typed.keys()].sort((a, b) => a - b);
  for (const here of queue) {
    if (here === answer.second) return ways.get(here);
    const steps = typed.has(here) ? fixed.map((there) => [there, []]) : [];
    for (const a of answers) if (a.first === here || a.second === here) steps.push([a.first + a.second - here, [a]]);
    for (const [there, by] of steps) if (!ways.has(there)) { ways.set(there, [...ways.get(here), ...by]); queue.push(there); }
  }
  return [];
}

const key = (a, b) => `${Math.min(a, b)} ${Math.max(a, b)}`;

/** The comparison that tells most: what connects all pairs to the first, then what lowers the sum of variances most. */
function nextComparison(n, answers, typed, skipped) {
  const asked = new Set([...answers.map((a) => key(a.first, a.second)), ...skipped]), known = [...typed], open = [];
  const edges = [...answers.map((a) => [a.first, a.second]), ...known.map((i) => [i, Math.min(...known)])];
  for (let i = 0; i < n; i++) {
    for (let j = i + 1; j < n; j++) if (!asked.has(key(i, j)) && !(typed.has(i) && typed.has(j))) open.push([i, j]);
  }
  const home = components(n, edges).find((part) => part.has(0));
  const link = open.find(([i, j]) => home.has(i) !== home.has(j));
  if (link || !open.length) return link ?? null;
  const laplacian = zeros(n, n).map((row, i) => row.map((_, j) => 1 / n + (i === j ? 1e-6 : 0)));
  for (const [i, j] of edges) if (i !== j) { laplacian[i][i]++; laplacian[j][j]++; laplacian[i][j]--; laplacian[j][i]--; }
  const solved = inverse(laplacian);
  let best = null, gain = 0;
  for (const [i, j] of open) {
    const way = solved[i].map((value, k) => value - solved[j][k]);
    const lowered = way.reduce((sum, value) => sum + value * value, 0) / (1 + way[i] - way[j]);
    if (lowered > gain * (1 + SAME)) { best = [i, j]; gain = lowered; }
  }
  return best;
}

const geometric = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);

/** Several experts' costs as one: geometric mean, and the highest over the lowest in units of each one's usual cost. */
function merged(experts) {
  const units = experts.map((costs) => usualCost(costs) || 1), costs = new Float64Array(K * K), spread = new Float64Array(K * K).fill(1);
  for (let at = 0; at < K * K; at++) {
    const values = experts.map((each) => each[at]), some = values.filter((cost) => cost > 0);
    const scaled = values.map((cost, e) => cost / units[e]);
    costs[at] = values.every((cost) => cost === values[0]) ? values[0] : rounded(geometric(some));
    if (some.length) spread[at] = some.length < values.length ? Infinity : Math.max(...scaled) / Math.min(...scaled);
  }
  return { costs, spread };
}

/** The most frequent cost of a mistake; of equally frequent ones the smallest. */
function usualCost(costs) {
  const times = new Map();
  costs.forEach((cost, at) => { if (at % (K + 1)) times.set(cost, (times.get(cost) ?? 0) + 1); });
  return [...times].sort(([a, n], [b, m]) => m - n || a - b)[0][0];
}

// -- book: what this expert said ----------------------------------------------------------------------------------

const fresh = () => ({
  who: "", start: Float64Array.from(facts.start.flat()), referral: facts.referral, pairs: facts.pairs.map(([y, z]) => ({ y, z, cost: null, why: "" })),
  answers: [], skipped: new Set(), groups: [], labels: new Map(),
});
let book = fresh(), others = [], state = null, saved = true, view = "today", cell = facts.pairs[0] ?? [0, 1], flipped = false;
const depth = { cell: SHOWN, moved: SHOWN, suspects: SHOWN }; // cards that are shown

const typedOf = (of) => new Map(of.pairs.flatMap((pair, i) => (pair.cost === null ? [] : [[i, pair.cost]])));
const startOf = (of) => of.pairs.map(({ y, z }) => of.start[y * K + z]);

/** All costs, and where each that is not as before comes from. */
function costsOf(of) {
  const costs = of.start.slice(), source = new Array(K * K).fill(""), scale = fitScale(startOf(of), of.answers, typedOf(of));
  of.pairs.forEach(({ y, z, cost }, i) => {
    if (isNaN(scale.costs[i])) return;
    costs[y * K + z] = cost ?? rounded(scale.costs[i]);
    source[y * K + z] = cost === null ? "from comparisons" : "set by hand";
  });
  const known = source.map(Boolean);
  for (const g of of.groups) {
    for (const h of of.groups) {
      const cells = g.classes.flatMap((y) => h.classes.filter((z) => z !== y).map((z) => y * K + z));
      const values = cells.filter((at) => known[at]).map((at) => costs[at]), positive = values.filter((cost) => cost > 0);
      if (!values.length) continue;
      for (const at of cells.filter((at) => !known[at])) {
        costs[at] = positive.length ? rounded(geometric(positive)) : 0;
        source[at] = `as between the groups ${g.name} and ${h.name}`;
      }
    }
  }
  return { costs, source };
}

function derive() {
  const own = costsOf(book), all = [own.costs, ...others.map((other) => other.costs)];
  const together = others.length ? merged(all) : { costs: own.costs, spread: null }, { costs } = together;
  const found = { costs, source: own.source, all, spread: together.spread, expected: expected(costs), unit: meanCost(costs) };
  found.chosen = decide(found.expected, found.unit);
  found.before = count(labels, today);
  found.after = count(labels, found.chosen);
  found.contradictions = contradictions(startOf(book), book.answers, typedOf(book));
  return found;
}

/** The pair's place in the book; one that is new is added. */
function placeOf(y, z) {
  const at = book.pairs.findIndex((pair) => pair.y === y && pair.z === z);
  return at < 0 ? book.pairs.push({ y, z, cost: null, why: "" }) - 1 : at;
}

function setCost(y, z, cost, live = false) {
  if (cost !== null && !(cost >= 0 && cost < Infinity)) return;
  book.pairs[placeOf(y, z)].cost = cost;
  update(live);
}

/** Samples of a cell, worst first: sure of the wrong class; of right ones the least sure. */
function samplesOf(y, z, predicted) {
  const worst = (i) => (y === z ? -p[i * K + y] : p[i * K + z] - p[i * K + y]);
  return labels.flatMap((label, i) => (label === y && predicted[i] === z ? [i] : [])).sort((a, b) => worst(b) - worst(a));
}

/** A picture of that mistake; where it never happened, the sample that came nearest. */
function exampleOf(y, z) {
  const own = samplesOf(y, z, today);
  if (own.length) return own[0];
  return labels.reduce((best, label, i) => (label === y && (best < 0 || p[i * K + z] > p[best * K + z]) ? i : best), -1);
}

/** Confident disagreement, weighted by what the pair costs. */
function suspicious() {
  return labels.map((y, i) => {
    const z = likeliest(i);
    return { i, z, score: (p[i * K + z] - p[i * K + y]) * state.costs[y * K + z] };
  }).filter((each) => each.score > 0).sort((a, b) => b.score - a.score);
}

function likeliest(i) {
  let best = 0;
  for (let k = 1; k < K; k++) if (p[i * K + k] > p[i * K + best]) best = k;
  return best;
}

const ranked = (i) => classes.map((_, k) => k).sort((a, b) => p[i * K + b] - p[i * K + a]);

// -- view ---------------------------------------------------------------------------------------------------------

/** An element. Children are elements or text: a name is never markup. */
function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat());
  return made;
}

const nameOf = (k) => h("bdi", {}, classes[k]);
const pairOf = (y, z) => h("span", { class: "pair" }, nameOf(y), " labelled as ", nameOf(z));
const said = (y, z) => `${classes[y]} labelled as ${classes[z]}`;
const button = (text, onclick, given = {}) => h("button", { type: "button", onclick, ...given }, text);
const shown = (value, digits = 3) => (isFinite(value) ? Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 }) : "∞");
const fixed = (value, digits = 2) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (share, digits = 1) => `${fixed(100 * share, digits)}\u00a0%`;
const some = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

function option(selected) {
  return classes.map((name, k) => h("option", { value: k, selected: k === selected }, name));
}

/** The picture or the row of a sample, what the model was unsure between, and what to say of its label. */
function card(i, ...notes) {
  const alt = `${names[i]}: ${classes[labels[i]]}`;
  const row = () => h("table", { class: "values" }, h("tbody", {}, facts.columns.map((column, c) => h("tr", {}, h("th", { scope: "row" }, column), h("td", {}, facts.rows[i][c])))));
  const seen = images.length ? [h("img", { src: `data:image/${$("images").dataset.kind};base64,${images[i]}`, alt })] : facts.rows.length ? [row()] : [];
  const bars = ranked(i).filter((k, place) => (place < 3 && p[i * K + k] >= 0.005) || k === labels[i]).map((k) => {
    const bar = h("li", { class: k === labels[i] ? "truth" : "" }, h("span", {}, nameOf(k)), h("span", {}, percent(p[i * K + k], 0)));
    bar.style.setProperty("--share", p[i * K + k]);
    return bar;
  });
  return h("li", { "data-sample": i }, seen, notes, h("ul", { class: "unsure", "aria-label": "The model was unsure between" }, bars), h("p", { class: "soft file" }, h("bdi", {}, names[i])), labelTools(i));
}

/** The first samples of a list, and a button for more. */
function cards(where, list, render, draw) {
  const more = () => { depth[where] += 2 * SHOWN; render(); };
  return [h("ul", { class: "cards" }, list.slice(0, depth[where]).map(draw)), list.length > depth[where] ? button(`Show more of ${list.length.toLocaleString("en")}`, more) : ""];
}

function labelTools(i) {
  const suggested = book.labels.get(i), node = h("div", { class: "tools", "data-tools": i });
  const set = (k) => {
    if (k === null) book.labels.delete(i);
    else book.labels.set(i, k);
    const within = document.activeElement.closest("[data-tools]");
    for (const each of document.querySelectorAll(`[data-tools="${i}"]`)) {
      const next = labelTools(i);
      each.replaceWith(next);
      if (each === within) next.querySelector("button, select").focus();
    }
    touched();
    renderCounts();
  };
  if (suggested === undefined) {
    node.append(button("Label is wrong", () => set(ranked(i).find((k) => k !== labels[i]))), button("Label is right", () => set(labels[i])));
  } else if (suggested === labels[i]) {
    node.append("Label confirmed. ", button("Undo", () => set(null)));
  } else {
    const choice = h("select", { "aria-label": `Right label of ${names[i]}`, onchange: (event) => set(Number(event.target.value)) }, option(suggested));
    node.append(h("label", {}, "Should be ", choice), button("Undo", () => set(null)));
  }
  return node;
}

/** A number and a slider for one cost. */
function costControls(y, z, at) {
  const cost = state.costs[y * K + z], who = said(y, z);
  const number = h("input", {
    type: "number", min: 0, step: "any", value: shownCost(cost), id: `${at}-number`, "data-pair": `${y} ${z}`, "aria-label": `Cost of ${who}`,
    onchange: (event) => setCost(y, z, event.target.value === "" ? null : Number(event.target.value)),
  });
  const slider = h("input", {
    type: "range", min: -2, max: 4, step: 0.05, value: place(cost), id: `${at}-slider`, "data-pair": `${y} ${z}`, "aria-label": `Drag the cost of ${who}`,
    "aria-valuetext": shown(cost), oninput: (event) => setCost(y, z, Number((10 ** event.target.value).toPrecision(2)), true), onchange: () => update(),
  });
  return [number, slider];
}

const shownCost = (cost) => String(Number(cost.toPrecision(6)));
const place = (cost) => Math.min(4, Math.max(-2, Math.log10(cost || 1e-2)));

let cells = [], drawn = new Array(K * K).fill(""); // what the cells show

function buildMap() {
  const size = K <= 12 ? "large" : K <= 30 ? "medium" : "small";
  const head = h("tr", {}, h("td", { class: "corner" }, "truth ↓ predicted →"), classes.map((name) => h("th", { scope: "col", title: name }, h("span", {}, h("bdi", {}, name)))));
  const body = classes.map((name, y) => h("tr", {}, h("th", { scope: "row", title: name }, h("bdi", {}, name)), classes.map((_, z) => h("td", { role: "gridcell", tabindex: -1, "data-at": y * K + z, class: y === z ? "right" : "" }))));
  const map = h("table", { role: "grid", class: `map ${size}`, "aria-label": "Confusion matrix: arrow keys move, Enter shows the samples" }, h("thead", {}, head), h("tbody", {}, body));
  const at = (event) => event.target.closest("[data-at]");
  const pick = (td) => choose(Math.floor(td.dataset.at / K), td.dataset.at % K);
  const tell = (event) => { const td = at(event); if (td) $("pointed").textContent = told(Number(td.dataset.at)); };
  map.addEventListener("click", (event) => { const td = at(event); if (td) { pick(td); td.focus(); } });
  map.addEventListener("pointerover", tell);
  map.addEventListener("focusin", tell);
  map.addEventListener("keydown", (event) => {
    const td = at(event), place = td && Number(td.dataset.at), y = Math.floor(place / K), z = place % K;
    const moves = { ArrowUp: [y - 1, z], ArrowDown: [y + 1, z], ArrowLeft: [y, z - 1], ArrowRight: [y, z + 1], Home: [y, 0], End: [y, K - 1] };
    if (td && moves[event.key]) {
      const [to, over] = moves[event.key].map((k) => Math.min(K - 1, Math.max(0, k)));
      td.tabIndex = -1;
      cells[to * K + over].tabIndex = 0;
      cells[to * K + over].focus();
    } else if (td && (event.key === "Enter" || event.key === " ")) pick(td);
    else if (td && y !== z && /^[0-9.]$/.test(event.key)) { // typing into the cell
      pick(td);
      $("cell-number").value = "";
      $("cell-number").focus();
      return;
    } else return;
    event.preventDefault();
  });
  cells = [...map.querySelectorAll("[data-at]")];
  $("map").replaceChildren(map);
}

/** Shows the samples of a cell, and brings them into view. */
function choose(y, z) {
  cell = [y, z];
  depth.cell = SHOWN;
  fillMap();
  renderCell();
  $("cell").scrollTop = 0;
  const { top } = $("cell").getBoundingClientRect();
  if (top > 0.7 * innerHeight || top < 0) $("cell").scrollIntoView();
}

function told(at) {
  const y = Math.floor(at / K), z = at % K, n = `${state.before[at]} of ${sizes[y]} today, ${state.after[at]} with your costs`;
  return y === z ? `${classes[y]}, right: ${n}` : `${said(y, z)}: ${n}; costs ${shown(state.costs[at])}`;
}

function fillMap() {
  const counts = view === "today" ? state.before : state.after, off = (_, at) => at % (K + 1), mistakes = [...counts].filter(off);
  const most = Math.max(...mistakes, 1), prices = [...state.costs].filter(off), [low, high] = [Math.min(...prices), Math.max(...prices)];
  cells.forEach((td, at) => {
    const right = at % (K + 1) === 0, value = view === "costs" ? state.costs[at] : counts[at];
    const tone = view !== "costs" ? (right ? 0.15 + 0.5 * (value / (sizes[at / (K + 1)] || 1)) : Math.sqrt(value / most)) : right ? 0 : 0.08 + 0.87 * Math.sqrt((value - low) / (high - low || 1));
    const text = value && !(right && view === "costs") ? shown(value) : "", mark = text && `${text} ${tone} ${view}`;
    if (drawn[at] === mark) return;
    drawn[at] = mark;
    td.textContent = text;
    td.classList.toggle("strong", tone > 0.55);
    td.style.setProperty("--tone", text ? tone : 0);
  });
  for (const td of $("map").querySelectorAll("[aria-selected]")) td.removeAttribute("aria-selected");
  for (const td of $("map").querySelectorAll("[tabindex='0']")) td.tabIndex = -1;
  const here = cells[cell[0] * K + cell[1]];
  here.setAttribute("aria-selected", "true");
  here.tabIndex = 0;
  $("map").firstChild.classList.toggle("costs", view === "costs");
}

function renderCell() {
  const [y, z] = cell, predicted = view === "today" ? today : state.chosen, list = samplesOf(y, z, predicted), at = y * K + z;
  const pair = book.pairs.findIndex((each) => each.y === y && each.z === z);
  const controls = y === z ? [] : [
    h("div", { class: "controls" }, h("span", {}, "Cost"), costControls(y, z, "cell"), h("span", { class: "soft" }, state.source[at] || "as before")),
    pair < 0 ? button("Compare this mistake with others", () => { placeOf(y, z); update(); location.hash = "compare"; }, { id: "cell-compare" }) : "",
  ];
  const note = y === z ? "Right decisions, the least sure first." : list.length ? "Worst first: where the model was surest of the wrong class." : "This mistake does not happen on the validation samples.";
  $("cell").replaceChildren(
    h("h3", {}, y === z ? h("span", {}, nameOf(y), ", right") : pairOf(y, z)), h("p", { class: "soft" }, `${told(at).split(": ").pop()}. ${note}`), ...controls.flat(),
    ...cards("cell", list, renderCell, (i) => card(i)),
  );
}

const QUICK = [1, 2, 3, 5, 10, 20, 50, 100];

function renderCompare() {
  const typed = typedOf(book), n = book.pairs.length, enough = Math.min(3 * n, (n * (n - 1)) / 2), free = [...typed].filter(([, cost]) => cost === 0).map(([i]) => i);
  const nothing = free.flatMap((i) => book.pairs.map((_, j) => key(i, j)));
  let next = nextComparison(n, book.answers, new Set(typed.keys()), new Set([...book.skipped, ...nothing]));
  const box = $("question"), given = book.answers.length;
  $("asked").value = given;
  $("asked").max = enough;
  $("progress").textContent = `${some(given, "answer")}. ${n - 1} connect all ${n} mistakes, ${enough} make the scale precise.`;
  if (!next) box.replaceChildren(h("p", { class: "question" }, "Everything is compared. Thank you. Check the costs below."));
  else {
    const costs = next.map((i) => state.costs[book.pairs[i].y * K + book.pairs[i].z]);
    if (costs[0] < costs[1] !== flipped) next = [next[1], next[0]];
    const [first, second] = next, [a, b] = next.map((i) => book.pairs[i]);
    const answer = (ratio) => {
      if (!(ratio > 0 && ratio < Infinity)) return;
      book.answers.push({ first, second, ratio });
      flipped = false;
      update();
      $("question").querySelector("button")?.focus();
    };
    const picture = (pair) => { const i = exampleOf(pair.y, pair.z); return h("ul", { class: "cards" }, i < 0 ? "" : card(i)); };
    const number = h("input", { type: "number", id: "ratio", min: 0, step: "any", placeholder: "7", onkeydown: (event) => event.key === "Enter" && answer(Number(event.target.value)) });
    box.replaceChildren(
      h("p", { class: "question" }, "One ", h("strong", {}, pairOf(a.y, a.z)), " is as bad as how many ", h("strong", {}, pairOf(b.y, b.z)), "?"),
      h("div", { class: "versus" }, picture(a), h("span", { class: "soft" }, "against"), picture(b)),
      h("div", { class: "quick", role: "group", "aria-label": "As bad as how many?" }, QUICK.map((ratio) => button(String(ratio), () => answer(ratio)))),
      h("div", { class: "controls" }, h("label", {}, "or another number ", number), button("Answer", () => answer(Number(number.value)), { id: "answer" }),
        button("The other way round", () => { flipped = !flipped; renderCompare(); $("swap").focus(); }, { id: "swap" }),
        button("Cannot say", () => { book.skipped.add(key(first, second)); flipped = false; touched(); renderCompare(); $("skip")?.focus(); }, { id: "skip" })),
    );
  }
  $("contradictions").replaceChildren(...state.contradictions.map(({ answer, others: rest, implied }) => h("div", { class: "warning" },
    h("p", {}, h("strong", {}, "These answers contradict each other. "), `You said ${shown(answer.ratio)}; your other answers imply about ${shown(implied, 2)}. Correct the one that is wrong:`),
    h("ul", {}, [answer, ...rest].map((each) => answerLine(each, "fix")), rest.length ? "" : h("li", {}, "The costs that you set by hand say otherwise.")))));
  $("answers").replaceChildren(...book.answers.map((each) => answerLine(each, "said")));
  $("answers-title").textContent = `Your answers (${given})`;
}

function answerLine(answer, where) {
  const k = book.answers.indexOf(answer), [a, b] = [answer.first, answer.second].map((i) => book.pairs[i]);
  const number = h("input", {
    type: "number", min: 0, step: "any", value: shownCost(answer.ratio), id: `${where}-${k}`, "aria-label": `How many ${said(b.y, b.z)} are as bad as one ${said(a.y, a.z)}`,
    onchange: (event) => { if (Number(event.target.value) > 0) answer.ratio = Number(event.target.value); update(); },
  });
  return h("li", { class: "answer" }, "One ", pairOf(a.y, a.z), " is as bad as ", number, " ", pairOf(b.y, b.z), " ", button("Remove", () => { book.answers.splice(k, 1); update(); }));
}

function renderCosts() {
  $("pairs").replaceChildren(...book.pairs.map(({ y, z, cost, why }, i) => h("tr", {},
    h("th", { scope: "row" }, button(pairOf(y, z), () => choose(y, z), { class: "link" })),
    h("td", { class: "n" }, `${state.before[y * K + z]} of ${sizes[y]}`),
    h("td", {}, h("div", { class: "controls" }, costControls(y, z, `cost-${i}`))),
    h("td", { class: "soft" }, state.source[y * K + z] || "as before", " ", cost === null ? "" : button("Undo", () => setCost(y, z, null), { id: `undo-${i}`, "aria-label": `Undo the cost of ${said(y, z)}` })),
    h("td", {}, h("input", { type: "text", value: why, id: `why-${i}`, maxlength: 500, placeholder: "why?", "aria-label": `Why ${said(y, z)} costs that`, oninput: (event) => { book.pairs[i].why = event.target.value; touched(); } })),
  )));
  const grouped = new Map(book.groups.flatMap((group) => group.classes.map((k) => [k, group.name])));
  $("group-classes").replaceChildren(...classes.map((name, k) => h("label", {}, h("input", { type: "checkbox", value: k, disabled: grouped.has(k) }), " ", h("bdi", {}, name), grouped.has(k) ? h("span", { class: "soft" }, ` (${grouped.get(k)})`) : "")));
  $("groups").replaceChildren(...book.groups.map((group, g) => h("li", {}, h("strong", {}, group.name), ": ", group.classes.map((k) => classes[k]).join(", "), " ", button("Remove", () => { book.groups.splice(g, 1); update(); }))));
  const between = (g, h_) => {
    const pairs = g.classes.flatMap((y) => h_.classes.filter((z) => z !== y).map((z) => [y, z]));
    const known = pairs.filter(([y, z]) => book.pairs.some((pair) => pair.y === y && pair.z === z) && /comparisons|hand/.test(state.source[y * K + z]));
    if (!pairs.length) return "–";
    if (known.length) return shown(geometric(known.map(([y, z]) => state.costs[y * K + z] || 1e-12)));
    const likely = ([y, z]) => labels.reduce((sum, label, i) => sum + (label === y ? p[i * K + z] : 0), 0);
    const [y, z] = pairs.reduce((best, pair) => (likely(pair) > likely(best) ? pair : best));
    return button("Ask", () => { placeOf(y, z); update(); }, { "aria-label": `Ask about ${said(y, z)}` });
  };
  $("between").replaceChildren(...(book.groups.length ? [h("table", {}, h("caption", {}, "Cost from one group to another: truth in rows, predicted in columns"),
    h("thead", {}, h("tr", {}, h("td"), book.groups.map((g) => h("th", { scope: "col" }, g.name)))),
    h("tbody", {}, book.groups.map((g) => h("tr", {}, h("th", { scope: "row" }, g.name), book.groups.map((other) => h("td", {}, between(g, other)))))))] : []));
}

/** While a slider is dragged, only the values of the controls change. */
function syncCosts() {
  for (const input of document.querySelectorAll("input[data-pair]")) {
    const [y, z] = input.dataset.pair.split(" ").map(Number), cost = state.costs[y * K + z];
    if (input !== document.activeElement) input.value = input.type === "range" ? place(cost) : shownCost(cost);
    if (input.type === "range") input.setAttribute("aria-valuetext", shown(cost));
  }
}

function renderEffect() {
  const moved = labels.flatMap((_, i) => (state.chosen[i] === today[i] ? [] : [i])), price = (i, of) => state.costs[labels[i] * K + of[i]];
  const gain = (i) => price(i, today) - price(i, state.chosen), right = (i, of) => Number(of[i] === labels[i]);
  const [was, now] = [today, state.chosen].map((of) => 100 * paid(of, state.costs)), [low, high] = [today, state.chosen].map(accuracy);
  const change = (before, after) => [h("span", { class: "was" }, `${before} → `), after];
  $("live-cost").replaceChildren(...change(fixed(was), fixed(now)));
  $("live-accuracy").replaceChildren(...change(percent(low), percent(high)));
  $("live-moved").textContent = `${moved.length.toLocaleString("en")} of ${N.toLocaleString("en")}`;
  const better = moved.filter((i) => right(i, state.chosen)).length, worse = moved.filter((i) => right(i, today)).length;
  $("moved").textContent = moved.length ? `${some(moved.length, "decision")} would change: ${better} wrong ones become right, ${worse} right ones become wrong, ${moved.length - better - worse} stay wrong in another way. The largest differences in cost come first.` : "No decision changes yet: answer a few comparisons, or set a cost.";
  moved.sort((a, b) => Math.abs(gain(b)) - Math.abs(gain(a)));
  $("moved-cards").replaceChildren(...cards("moved", moved, renderEffect, (i) => card(i, h("p", {}, "Truth ", h("strong", {}, nameOf(labels[i]))), h("p", { class: gain(i) >= 0 ? "good" : "bad" }, nameOf(today[i]), " → ", nameOf(state.chosen[i]), h("span", { class: "soft" }, ` cost ${shown(price(i, today))} → ${shown(price(i, state.chosen))}`)))));
  const lines = book.pairs.filter(({ y, z }) => state.costs[y * K + z] > 0).map(({ y, z }) => ({ y, z, half: ifWrong(y, z, 0.5, state), double: ifWrong(y, z, 2, state) }));
  lines.sort((a, b) => b.half.changed + b.double.changed - a.half.changed - a.double.changed);
  const of = (found) => [h("td", { class: "n" }, found.changed), h("td", { class: "n" }, fixed(100 * found.cost))];
  $("sensitivity").replaceChildren(...lines.map(({ y, z, half, double }) => h("tr", {}, h("th", { scope: "row" }, pairOf(y, z)), h("td", { class: "n" }, shown(state.costs[y * K + z])), of(half), of(double))));
}

function renderLabels() {
  $("suspects").replaceChildren(...cards("suspects", suspicious(), renderLabels, ({ i, z }) => card(i, h("p", {}, "Label ", h("strong", {}, nameOf(labels[i])), ", model ", h("strong", {}, nameOf(z))))));
}

function renderCounts() {
  const wrong = [...book.labels].filter(([i, k]) => k !== labels[i]).length;
  const odd = state.contradictions.length;
  $("live-answers").textContent = `${book.answers.length}${odd ? `, ${some(odd, "contradiction")}` : ""}`;
  $("save-labels").textContent = `labels.csv (${wrong})`;
  $("save-labels").disabled = !wrong;
}

function renderSpread() {
  if (!others.length) return $("spread").replaceChildren();
  const people = [book.who || "this page", ...others.map((other) => other.who || "no name")];
  const at = [...state.spread.keys()].filter((place) => state.spread[place] > 1 + SAME).sort((a, b) => state.spread[b] - state.spread[a]);
  const odd = at.filter((place) => state.spread[place] > FACTOR * (1 + SAME)).length;
  $("spread").replaceChildren(
    h("p", {}, h("strong", {}, `${some(people.length, "expert")}. `), `Costs on this page are now the geometric mean. ${odd ? `${some(odd, "pair")} differ by more than a factor of ${FACTOR}: talk about these.` : "No pair differs by more than a factor of three."} `, button("Leave the others out", () => { others = []; update(); })),
    h("div", { class: "sideways", tabindex: 0, role: "group", "aria-label": "Spread between experts" }, h("table", {}, h("caption", {}, "Where the experts differ, most first"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Mistake"), people.map((who) => h("th", { scope: "col", class: "n" }, who)), h("th", { scope: "col", class: "n" }, "Mean"), h("th", { scope: "col", class: "n" }, "Factor"))),
      h("tbody", {}, at.slice(0, 2 * SHOWN).map((place) => h("tr", { class: state.spread[place] > FACTOR * (1 + SAME) ? "odd" : "" }, h("th", { scope: "row" }, pairOf(Math.floor(place / K), place % K)), state.all.map((costs) => h("td", { class: "n" }, shown(costs[place]))), h("td", { class: "n" }, shown(state.costs[place])), h("td", { class: "n" }, shown(state.spread[place], 2))))))),
  );
}

const touched = () => { saved = false; };

/** Everything anew after something was said; while a slider is dragged (live) the controls stay. */
function update(live = false) {
  const focus = document.activeElement?.id;
  touched();
  state = derive();
  fillMap();
  renderEffect();
  renderCounts();
  syncCosts();
  if (live) return;
  for (const render of [renderCell, renderCompare, renderCosts, renderLabels, renderSpread]) render();
  if (focus && document.activeElement.id !== focus) $(focus)?.focus();
}

// -- files --------------------------------------------------------------------------------------------------------

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
// A spreadsheet runs cells that begin so. A space before a name is not read as part of it, an apostrophe would be.
const prose = (text) => quoted(text.replace(/^[=+\-@\t\r]/, "'$&"));
const cellOf = (name) => quoted(name.replace(/^[=+\-@#\t\r]/, " $&"));

function checksum(text) {
  let crc = -1;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ((crc ^ -1) >>> 0).toString(16).padStart(8, "0");
}

function costsFile() {
  const usual = usualCost(state.costs), when = new Date().toISOString(), who = [book, ...others].map((each) => each.who).filter(Boolean).join(" and ");
  const end = `${prose(who)},${when}`, reasons = new Map(book.pairs.map(({ y, z, why }) => [y * K + z, why]));
  const price = book.referral === null ? [] : [`*,${REFERRED},${book.referral},leaving a case to a person,,`];
  const lines = [`# What each mistake costs. Made with csada review, model ${facts.model}. The truth comes first, then the prediction.`,
    "truth,predicted,cost,why,who,when", `*,*,${usual},every mistake that is not listed,${end}`, ...price, ...classes.map((name) => `${cellOf(name)},${cellOf(name)},0,right,,`)];
  state.costs.forEach((cost, at) => {
    const y = Math.floor(at / K), z = at % K, why = [reasons.get(at), others.length ? "mean of experts" : state.source[at]].filter(Boolean).join("; ");
    if (y !== z && (cost !== usual || why)) lines.push(`${cellOf(classes[y])},${cellOf(classes[z])},${cost},${prose(why)},${end}`);
  });
  return `${lines.join("\n")}\n`;
}

function labelsFile() {
  const end = `${prose(book.who)},${new Date().toISOString()}`;
  const wrong = [...book.labels].filter(([i, k]) => k !== labels[i]).map(([i, k]) => `${cellOf(names[i])},${cellOf(classes[labels[i]])},${cellOf(classes[k])},${end}`);
  return `${["file,label,suggested,who,when", ...wrong].join("\n")}\n`;
}

function answersFile() {
  const names_ = ({ y, z }) => [classes[y], classes[z]], pair = (i) => names_(book.pairs[i]);
  const values = {
    format: FORMAT, model: facts.model, data: facts.data, classes, who: book.who, when: new Date().toISOString(),
    start: classes.map((_, y) => [...book.start.slice(y * K, y * K + K)]), referral_cost: book.referral,
    pairs: book.pairs.map(({ y, z, cost, why }) => ({ truth: classes[y], predicted: classes[z], cost, why })),
    comparisons: book.answers.map(({ first, second, ratio }) => ({ first: pair(first), second: pair(second), ratio })),
    skipped: [...book.skipped].map((each) => each.split(" ").map((i) => pair(Number(i)))),
    groups: book.groups.map((group) => ({ name: group.name, classes: group.classes.map((k) => classes[k]) })),
    labels: [...book.labels].map(([i, k]) => ({ sample: names[i], label: classes[labels[i]], suggested: classes[k] })),
  };
  const body = `${Object.entries(values).map(([name, value]) => ` "${name}": ${JSON.stringify(value)}`).join(",\n")}\n}\n`;
  return `{\n "checksum": "${checksum(body)}",\n${body}`;
}

/** A book from an answers file, or an error that says why not. */
function readAnswers(text, file) {
  const signed = text.replaceAll("\r\n", "\n").match(/^\{\s*"checksum": "([0-9a-f]{8})",\n([^]*)$/);
  if (!signed) throw Error(`${file} is no answers file of csada review.`);
  if (checksum(signed[2]) !== signed[1]) throw Error(`${file} was changed after it was downloaded. Download it again from the page.`);
  const found = JSON.parse(text);
  if (found.model !== facts.model) throw Error(`${file} is about another model (${found.model}, this page is about ${facts.model}).`);
  if (found.format !== FORMAT) throw Error(`${file} has format ${found.format}; this page reads ${FORMAT}.`);
  const number = new Map(classes.map((name, k) => [name, k])), sample = new Map(names.map((name, i) => [name, i]));
  const pairs = found.pairs.map(({ truth, predicted, cost, why }) => ({ y: number.get(truth), z: number.get(predicted), cost, why }));
  const place_ = ([truth, predicted]) => pairs.findIndex(({ y, z }) => y === number.get(truth) && z === number.get(predicted));
  return {
    who: found.who, start: Float64Array.from(found.start.flat()), referral: found.referral_cost ?? null, pairs,
    answers: found.comparisons.map(({ first, second, ratio }) => ({ first: place_(first), second: place_(second), ratio })),
    skipped: new Set(found.skipped.map(([a, b]) => key(place_(a), place_(b)))),
    groups: found.groups.map((group) => ({ name: group.name, classes: group.classes.map((name) => number.get(name)) })),
    labels: new Map(found.labels.filter((flag) => sample.has(flag.sample)).map((flag) => [sample.get(flag.sample), number.get(flag.suggested)])),
  };
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
  saved = saved || name === "answers.json";
  $("said").textContent = `${name} is in your downloads.`;
}

async function take(event, then) {
  const [file] = event.target.files;
  event.target.value = "";
  try {
    then(readAnswers(await file.text(), file.name));
    update();
    $("said").textContent = `${file.name} is loaded.`;
  } catch (error) {
    $("said").textContent = error.message;
  }
}

// -- start --------------------------------------------------------------------------------------------------------

for (const input of document.querySelectorAll("[name=view]")) {
  input.addEventListener("change", () => { view = input.value; fillMap(); renderCell(); });
}
$("who").addEventListener("input", (event) => { book.who = event.target.value; touched(); });
$("add-group").addEventListener("click", () => {
  const members = [...$("group-classes").querySelectorAll(":checked")].map((input) => Number(input.value)), name = $("group-name").value.trim();
  $("group-said").textContent = name && members.length ? "" : "Give the group a name and at least one class.";
  if (!name || !members.length) return;
  book.groups.push({ name, classes: members });
  $("group-name").value = "";
  update();
});
$("save-costs").addEventListener("click", () => download("costs.csv", costsFile()));
$("save-labels").addEventListener("click", () => download("labels.csv", labelsFile()));
$("save-answers").addEventListener("click", () => download("answers.json", answersFile()));
$("open").addEventListener("change", (event) => take(event, (found) => { book = found; $("who").value = found.who; }));
$("add").addEventListener("change", (event) => take(event, (found) => others.push({ who: found.who, costs: costsOf(found).costs })));
addEventListener("beforeunload", (event) => { if (!saved) event.preventDefault(); });
const before = count(labels, today), { costs: begin, source } = costsOf(book);
const worst = before.reduce((best, n, at) => (at % (K + 1) && n * begin[at] > before[best] * begin[best] ? at : best), 1);
cell = [Math.floor(worst / K), worst % K];
state = { costs: begin, source, before, after: before, chosen: today };
renderCell();
const rest = () => setTimeout(() => { buildMap(); update(); saved = true; });
Promise.resolve(document.querySelector("#cell img")?.decode()).then(rest, rest); // the first picture before all else
