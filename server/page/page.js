// The page of topkd: asks /status.json once a second and draws what changed since the last answer.
"use strict";

const PERIOD_MS = 1000;
const HISTORY = 120; // samples in a chart, and at least
const HISTORY_MIN = 30;
const LATE_MS = 3000; // an answer that takes longer counts as none
const SVG = "http://www.w3.org/2000/svg";
const ROUTES = ["copied", "direct", "certified", "band", "recovery", "spill"];
const KIND_TEXT = {
  index: "by index", value: "by value", lowest: "lowest ties", scores: "with scores", pages: "page table",
  offsets: "row offsets", "4-byte": "aligned to 4", "16-byte": "aligned to 16", "128-byte": "aligned to 128",
};
const CODE_TEXT = { ok: "answered" };
const END_TEXT = {
  closed: "client closed or ended", died: "client died, connection held", drained: "worker drained",
  fault: "worker gave up on its device",
};

const at = (id) => document.getElementById(id);
let before = null; // the last status
let samples = []; // {rate, failed, p50, p99, run50, routes[]}, null for a moment without figures
let cursor = null; // index of the sample under the pointer

// ---- Numbers for people ----

function three(value) {
  if (value === 0) return "0";
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function count(value) {
  if (value == null) return "–";
  if (value < 10000) return Number.isInteger(value) ? String(value) : three(value);
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (value >= size) return three(value / size) + " " + unit;
  }
  return three(value / 1e3) + " k";
}

function time(ns) {
  if (ns == null) return "–";
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= size) return three(ns / size) + " " + unit;
  }
  return Math.round(ns) + " ns";
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; unit++; }
  return (unit === 0 ? String(value) : three(value)) + " " + units[unit];
}

function age(ms) {
  if (ms == null) return "–";
  const s = Math.floor(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60);
  if (s < 10) return (ms / 1000).toFixed(1) + " s";
  if (h >= 24) return Math.floor(h / 24) + " d " + (h % 24) + " h";
  if (h > 0) return h + " h " + (m % 60) + " min";
  return m > 0 ? m + " min " + (s % 60) + " s" : s + " s";
}

// ---- Figures ----

const sum = (list) => list.reduce((a, b) => a + b, 0);

// The latency below which this part of the counted ones lie, placed within its bin in proportion.
function quantile(bins, part) {
  const rank = part * sum(bins);
  let below = 0;
  for (let i = 0; i < bins.length; i++) {
    if (bins[i] > 0 && below + bins[i] >= rank) return 2 ** i * (1 + (rank - below) / bins[i]);
    below += bins[i];
  }
  return null;
}

const chosen = (status) => {
  const device = at("device").value;
  return status.devices.filter((d) => device === "" || d.device === device);
};

// What happened between two statuses, a second; null when no device had new figures.
function sampleOf(old, now) {
  const sample = { rate: 0, failed: 0, routes: ROUTES.map(() => 0), sessions: {}, buckets: {}, steps: {} };
  let bins = null, run = null, any = false;
  for (const device of chosen(now)) {
    const then = old.devices.find((d) => d.device === device.device && d.epoch === device.epoch);
    const a = then && then.figures, b = device.figures;
    const seconds = a && b ? (b.published_ns - a.published_ns) / 1e9 : 0;
    if (!(seconds > 0)) continue;
    any = true;
    sample.rate += (b.requests - a.requests) / seconds;
    sample.failed += (b.requests_failed - a.requests_failed) / seconds;
    ROUTES.forEach((r, i) => { sample.routes[i] += (b.routes[r] - a.routes[r]) / seconds; });
    const minus = (key) => b[key].log2_bins.map((v, i) => v - a[key].log2_bins[i]);
    const plus = (x, y) => x ? x.map((v, i) => v + y[i]) : y;
    bins = plus(bins, minus("request"));
    run = plus(run, minus("run"));
    sample.steps[device.device] = (b.lane_steps - a.lane_steps) / seconds;
    for (const s of b.session_list) {
      const s0 = a.session_list.find((x) => x.session === s.session);
      if (s0) sample.sessions[device.device + s.session] = (s.requests - s0.requests) / seconds;
    }
    for (const k of b.buckets) {
      const k0 = a.buckets.find((x) => x.bucket === k.bucket);
      sample.buckets[device.device + k.bucket] = (k.requests - (k0 ? k0.requests : 0)) / seconds;
    }
  }
  if (!any) return null;
  sample.p50 = quantile(bins, 0.5);
  sample.p99 = quantile(bins, 0.99);
  sample.run50 = quantile(run, 0.5);
  return sample;
}

// ---- Drawing ----

function element(name, properties, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

function shape(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text != null) node.textContent = text;
  return node;
}

// Steps of 1, 2 or 5 that make about three lines.
function steps(most) {
  const raw = most / 3, size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((f) => f * size >= raw);
  const list = [];
  for (let v = 0; v <= most + step * 0.999; v += step) list.push(v);
  return list;
}

function linear(values) {
  const most = Math.max(1, ...values), marks = steps(most), top = marks[marks.length - 1];
  return { marks, place: (v) => v / top };
}

// Whole powers of ten around the values.
function logarithmic(values) {
  const good = values.filter((v) => v > 0);
  const low = good.length ? Math.floor(Math.log10(Math.min(...good))) : 3;
  const high = Math.max(low + 1, good.length ? Math.ceil(Math.log10(Math.max(...good))) : 6);
  const marks = [];
  for (let e = low; e <= high; e++) marks.push(10 ** e);
  return { marks, place: (v) => (Math.log10(v) - low) / (high - low) };
}

// Lines of points; a null interrupts.
function paths(points) {
  let text = "", pen = false;
  for (const p of points) {
    if (p) text += (pen ? "L" : "M") + p[0].toFixed(1) + " " + p[1].toFixed(1);
    pen = p != null;
  }
  return text;
}

// series: {name, values[], text(value)}; all of one scale. stacked: one upon the other, as areas.
function draw(id, series, options) {
  const figure = at(id), plot = figure.querySelector(".plot");
  const width = Math.max(200, plot.clientWidth), height = Math.max(100, plot.clientHeight);
  const left = 52, right = 6, top = 8, bottom = 20;
  const span = Math.max(HISTORY_MIN, samples.length) - 1;
  const x = (i) => left + (width - left - right) * (i + span + 1 - samples.length) / span;
  const total = (i) => sum(series.map((s) => s.values[i] || 0));
  const all = options.stacked ? samples.map((_, i) => total(i)) : series.flatMap((s) => s.values);
  const scale = (options.log ? logarithmic : linear)(all.filter((v) => v != null));
  const y = (v) => top + (height - top - bottom) * (1 - scale.place(v));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const floor = height - bottom;

  for (const mark of scale.marks) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }));
    svg.append(shape("text", { x: left - 7, y: y(mark) + 4, "text-anchor": "end" }, options.text(mark).replace(/\.0+(?= |$)/, "")));
  }
  svg.append(shape("text", { x: left, y: height - 4 }, span * PERIOD_MS / 1000 + " s ago"));
  svg.append(shape("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "now"));

  const base = samples.map(() => 0);
  series.forEach((s, n) => {
    const tops = s.values.map((v, i) => v == null ? null : [x(i), y(options.stacked ? base[i] + v : v)]);
    if (options.stacked) {
      const first = tops.findIndex((p) => p);
      if (first >= 0) {
        const upper = tops.map((p, i) => p || [x(i), y(base[i])]).slice(first);
        const lower = samples.map((_, i) => [x(i), y(base[i])]).slice(first).reverse();
        svg.append(shape("path", { class: `area f${n}`, d: paths(upper.concat(lower)) + "Z" }));
      }
      s.values.forEach((v, i) => { base[i] += v || 0; });
    } else {
      if (n === 0 && !options.log && tops.some((p) => p)) {
        const some = tops.filter((p) => p);
        const d = paths(some) + `L${some[some.length - 1][0]} ${floor}L${some[0][0]} ${floor}Z`;
        svg.append(shape("path", { class: `wash f${n}`, d }));
      }
      svg.append(shape("path", { class: `curve s${n}`, d: paths(tops) }));
    }
  });

  const shown = cursor != null && samples[cursor] ? cursor : samples.length - 1;
  if (shown === cursor) {
    svg.append(shape("line", { class: "cursor", x1: x(shown), x2: x(shown), y1: top, y2: floor }));
  }
  const seconds = samples.length - 1 - shown;
  const legend = figure.querySelector(".legend");
  legend.replaceChildren(...series.map((s, n) => element("li", {}, element("i", { className: "f" + n }),
    s.name + " ", element("b", { textContent: options.text(s.values[shown]) }))));
  if (seconds > 0) legend.append(element("li", { textContent: seconds + " s ago" }));
  svg.setAttribute("aria-label", figure.querySelector("h2").textContent + ": " +
    series.map((s) => s.name + " " + options.text(s.values[shown])).join(", "));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * width / box.width;
    const i = Math.round((px - left) / (width - left - right) * span) - span - 1 + samples.length;
    cursor = i >= 0 && i < samples.length ? i : null;
    charts();
  });
  plot.replaceChildren(svg);
}

function charts() {
  const of = (get) => samples.map((s) => s ? get(s) : null);
  draw("chart-requests", [
    { name: "all", values: of((s) => s.rate) },
    { name: "failed", values: of((s) => s.failed) },
  ], { text: count });
  draw("chart-latency", [
    { name: "p50", values: of((s) => s.p50) },
    { name: "p99", values: of((s) => s.p99) },
    { name: "on the device, p50", values: of((s) => s.run50) },
  ], { log: true, text: time });
  draw("chart-routes", ROUTES.map((r, i) => ({ name: r, values: of((s) => s.routes[i]) })),
    { stacked: true, text: count });
}

// Changes only what differs, so that a selection of text survives.
function fill(table, headings, rows, none) {
  if (!table.tHead) {
    const row = table.createTHead().insertRow();
    for (const h of headings) row.append(element("th", { textContent: h, scope: "col" }));
    table.createTBody();
  }
  const body = table.tBodies[0];
  const wanted = rows.length ? rows : [[none]];
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, i) => {
    const row = body.rows[i] || body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((text, j) => {
      const cell = row.cells[j] || row.insertCell();
      if (cell.textContent !== text) cell.textContent = text;
      cell.className = rows.length ? "" : "none";
      cell.colSpan = rows.length ? 1 : headings.length;
    });
  });
}

const kind = (bucket) => bucket.variant.split(",").map((word) => KIND_TEXT[word] || word)
  .concat(bucket.configured ? "configured" : []).join(", ");

function tiles(status, sample) {
  const list = chosen(status).map((d) => d.figures).filter((f) => f);
  const total = (key) => sum(list.map((f) => f[key]));
  const shown = [
    ["Selections / s", sample ? count(sample.rate) : "–", "tile-rate"],
    ["p50", time(sample && sample.p50), "tile-p50"],
    ["p99", time(sample && sample.p99), "tile-p99"],
    ["Rows / s", sample ? count(sum(sample.routes)) : "–", "tile-rows"],
    ["Running, queued", `${count(total("running"))}, ${count(total("queued"))}`, "tile-queue"],
    ["Sessions", count(total("sessions")), "tile-sessions"],
    ["Mapped memory", bytes(total("mapped_bytes")), "tile-mapped"],
    ["Failed, in all", count(total("requests_failed")), "tile-failed"],
  ];
  if (!at("tiles").children.length) {
    at("tiles").append(...shown.map(([name, , id]) =>
      element("div", {}, element("dt", { textContent: name }), element("dd", { id }))));
  }
  for (const [, text, id] of shown) at(id).textContent = text;
  at("tile-failed").classList.toggle("hot", total("requests_failed") > 0);
}

// How many there were, and how many selections they held on average.
const batches = (f) => !f ? "–" : f.select_batches > 0
  ? `${count(f.select_batches)}, ${three(f.selects_batched / f.select_batches)} each` : "0";

function devices(status, sample) {
  const cards = status.devices.map((d) => {
    const f = d.figures;
    const entries = [
      ["last canary", age(d.canary_age_ms == null ? null : d.canary_age_ms + d.heard_ago_ms)],
      ["restarts", count(d.restarts)],
      ["up for", age(f && f.uptime_ms)],
      ["selections", count(f && f.requests)],
      ["sessions", f ? f.sessions + " of " + f.sessions_opened : "–"],
      ["regions", count(f && f.regions)],
      ["result slots", count(f && f.leases)],
      ["lengths clamped", count(f && f.rows_clamped)],
      ["messages with several", batches(f)],
      ["longest loop turn", time(f && f.loop_lag_ns)],
    ];
    if (f && (d.kind === "cuda" || f.lanes > 0)) {
      const steps = sample && sample.steps[d.device];
      entries.push(["lanes armed", `${f.lanes_armed} of ${f.lanes}, room for ${f.lanes_max}`], ["lane steps / s", count(steps)], ["lane pauses", count(f.lane_pauses)]);
    }
    const pill = element("p", { className: "pill " + (d.ready ? "good" : d.state === "starting" ? "" : "bad"),
      textContent: d.ready ? "ready" : d.reason });
    return element("article", { className: "device" },
      element("header", {}, element("h3", { textContent: d.name }), pill,
        element("p", { className: "id muted", textContent: d.kind === d.device ? d.kind : `${d.kind}, ${d.device}` })),
      element("dl", {}, ...entries.map(([k, v]) =>
        element("div", {}, element("dt", { textContent: k }), element("dd", { textContent: v })))));
  });
  at("devices").replaceChildren(...cards);
}

function tables(status, sample) {
  const several = chosen(status).length > 1;
  const each = (get) => chosen(status).flatMap((d) => d.figures ? get(d.figures, d) : []);
  const where = (d) => several ? " · " + d.device.slice(0, 12) : "";
  const rate = (map, key) => sample && map[key] != null ? count(map[key]) : "–";
  const buckets = each((f, d) => f.buckets.map((b) => ({ b, d })));
  buckets.sort((p, q) => q.b.requests - p.b.requests);
  fill(at("buckets"), ["Rows × width × K", "Kind", "Selections", "/ s", "Misses"], buckets.map(({ b, d }) => [
    `${b.rows} × ${b.width} × ${b.k}${where(d)}`, kind(b),
    count(b.requests), rate(sample && sample.buckets, d.device + b.bucket), count(b.misses),
  ]), "No shape has been asked for yet.");
  const sessions = each((f, d) => f.session_list.map((s) => ({ s, d })));
  fill(at("sessions"), ["Session", "Age", "Selections", "/ s", "In flight", "Regions", "Mapped"],
    sessions.map(({ s, d }) => [
      s.session.toString(16) + where(d), age(s.age_ms), count(s.requests),
      rate(sample && sample.sessions, d.device + s.session), count(s.outstanding), count(s.regions), bytes(s.mapped_bytes),
    ]), "Nobody is connected.");
  const add = (key) => {
    const all = {};
    each((f) => { for (const k in f[key]) all[k] = (all[k] || 0) + f[key][k]; return []; });
    return all;
  };
  const codes = Object.entries(add("codes"));
  fill(at("codes"), ["Code", "Selections"], codes.map(([k, v]) => [CODE_TEXT[k] ? `${k} (${CODE_TEXT[k]})` : k, count(v)]), "Nothing yet.");
  const ends = Object.entries(add("reaped"));
  fill(at("ends"), ["Reason", "Sessions"], ends.map(([k, v]) => [END_TEXT[k] || k, count(v)]), "Nothing yet.");
}

function offer(status) {
  const select = at("device");
  for (const d of status.devices) {
    if (![...select.options].some((o) => o.value === d.device)) {
      select.append(element("option", { value: d.device, textContent: `${d.name} (${d.device})` }));
    }
  }
  at("choice").hidden = status.devices.length < 2;
}

function show(status) {
  const sample = before ? sampleOf(before, status) : null;
  if (before) {
    samples.push(sample);
    samples = samples.slice(-HISTORY);
    if (cursor != null) cursor = cursor > 0 && samples.length === HISTORY ? cursor - 1 : cursor;
  }
  const word = status.draining ? "draining" : status.ready ? "ready" : "not ready";
  at("state").textContent = word;
  at("state").className = "pill " + (status.ready ? "good" : status.draining ? "" : "bad");
  document.title = "topkd: " + word;
  at("about").textContent = `version ${status.version}, up for ${age(status.uptime_ms)}`;
  at("trouble").hidden = true;
  offer(status);
  tiles(status, sample);
  devices(status, sample);
  tables(status, sample);
  before = status;
  charts();
  document.body.dataset.samples = samples.length;
}

function fail(error) {
  at("state").textContent = "no answer";
  at("state").className = "pill bad";
  document.title = "topkd: no answer";
  at("trouble").textContent = "The daemon does not answer (" + error.message + "). What is below is old; this page goes on asking.";
  at("trouble").hidden = false;
  if (before) {
    samples.push(null);
    samples = samples.slice(-HISTORY);
    charts();
  }
}

async function ask() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(LATE_MS) });
      if (!answer.ok) throw new Error("HTTP " + answer.status);
      show(await answer.json());
    } catch (error) {
      fail(error);
    }
  }
  setTimeout(ask, PERIOD_MS);
}

at("device").addEventListener("change", () => { samples = []; cursor = null; });
for (const plot of document.querySelectorAll(".plot")) {
  plot.addEventListener("pointerleave", () => { cursor = null; charts(); });
}
new ResizeObserver(() => charts()).observe(document.querySelector(".charts"));
ask();
