"use strict";
/* The page: which runs are shown, and a panel for each thing that they recorded.

   The data comes from the server that serves this page, or, in a report, from the page itself. */

const COLOURS = ["#0b8a84", "#d1495b", "#3b6fd4", "#c98a12", "#7b5bd6", "#4f8f2f", "#c2569b", "#6b7785", "#a85a32", "#2a9dc4"];
const FIRST = 6; /* configurations that are shown at first */
const PLACES = {
  uploads: ["uploads", (p) => p.uploads],
  time: ["virtual time", (p) => p.time],
  up: ["MB up", (p) => p.bytes_up.map((b) => b / 1e6)],
  down: ["MB down", (p) => p.bytes_down.map((b) => b / 1e6)],
};
const FAR = 5; /* lines whose ends are further apart than this factor get a logarithmic axis */

const element = (id) => document.getElementById(id);

/** A new element with text and children; text is never read as HTML. */
function make(name, properties = {}, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "text") one.textContent = value;
    else if (key.startsWith("on")) one.addEventListener(key.slice(2), value);
    else if (key in one && key !== "list") one[key] = value;
    else one.setAttribute(key, value);
  }
  one.append(...children);
  return one;
}

const page = {
  runs: [],
  groups: new Map(), /* name → {name, runs, colour} */
  shown: new Set(), /* ids of the runs that are shown; a group is shown if one of its runs is */
  colours: new Map(), /* id of a run → the colour of its group */
  chosen: false, /* whether somebody has chosen what is shown */
  data: new Map(), /* id → what the run recorded */
  drawn: new Map(), /* panel → what it shows, for its CSV file */
};

/* ---- the data ---- */

const embedded = element("data") ? JSON.parse(element("data").textContent) : null;

async function ask(path) {
  const answer = await fetch(path, { credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.text()) || `${path}: ${answer.status}`);
  return answer.json();
}

const source = embedded
  ? { runs: async () => embedded.runs, run: async (id) => embedded.run[id], events: async (id, first) => (first ? { events: [], total: 0 } : embedded.events[id]) }
  : { runs: () => ask("api/runs"), run: (id) => ask(`api/run/${id}`), events: (id, first) => ask(`api/events/${id}?first=${first}`) };

async function loadRuns() {
  const answer = await source.runs();
  element("where").textContent = answer.folder;
  page.runs = answer.runs;
  page.groups.clear();
  for (const run of answer.runs) {
    if (!page.groups.has(run.group)) page.groups.set(run.group, { name: run.group, runs: [] });
    page.groups.get(run.group).runs.push(run);
  }
  for (const group of page.groups.values()) admit(group);
  list();
  await loadShown();
}

const isShown = (group) => group.runs.some((run) => page.shown.has(run.id));
const shownGroups = () => [...page.groups.values()].filter(isShown);
const shownRuns = () => shownGroups().flatMap((group) => group.runs);

/** Give a group its colour, which it keeps, and show it if one of its runs is shown, or there is room. */
function admit(group) {
  const known = group.runs.find((run) => page.colours.has(run.id));
  const used = new Set(page.colours.values()).size;
  group.colour = known ? page.colours.get(known.id) : COLOURS.find((one) => ![...page.colours.values()].includes(one)) || COLOURS[used % COLOURS.length];
  const room = !page.chosen && shownGroups().length < FIRST;
  const show = isShown(group) || (!known && room);
  for (const run of group.runs) {
    page.colours.set(run.id, group.colour);
    if (show) page.shown.add(run.id);
  }
}

async function loadShown(again = new Set()) {
  const wanted = shownRuns().filter((run) => !page.data.has(run.id) || again.has(run.id));
  await Promise.all(wanted.map(async (run) => page.data.set(run.id, await source.run(run.id))));
  offer();
  draw();
}

/* ---- the list of runs ---- */

function list() {
  const words = element("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [];
  for (const group of page.groups.values()) {
    const text = [group.name, ...group.runs.map((run) => run.state)].join(" ").toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    const box = make("input", { type: "checkbox", id: `show-${rows.length}`, checked: isShown(group) });
    box.addEventListener("change", () => choose(group, box.checked).catch(complain));
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = group.colour;
    rows.push(make("div", { className: "run" }, box, swatch,
      make("label", { className: "name", htmlFor: box.id, text: group.name }),
      make("span", { className: "about", text: about(group) })));
  }
  element("runs").replaceChildren(...rows);
  if (!page.groups.size) element("runs").replaceChildren(make("p", { className: "note", text: "There is no run in this folder yet. qafel run --out FOLDER makes one." }));
}

function about(group) {
  const first = group.runs[0];
  const states = [...new Set(group.runs.map((run) => run.state))].join(", ");
  const seeds = group.runs.length > 1 ? `${group.runs.length} seeds, ` : "";
  const metric = Object.keys(first.metrics || {})[0];
  const values = group.runs.map((run) => (run.metrics || {})[metric]).filter(Number.isFinite);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const newest = values.length ? `, ${metric} ${Chart.number(mean)}` : "";
  return `${seeds}${states}, ${Chart.number(first.uploads || 0)} uploads${newest}`;
}

async function choose(group, on) {
  page.chosen = true;
  for (const run of group.runs) page.shown[on ? "add" : "delete"](run.id);
  await loadShown();
}

/* ---- what can be chosen ---- */

function offer() {
  const names = [...new Set(shownRuns().flatMap((run) => Object.keys(page.data.get(run.id)?.points?.metrics || {})))];
  const metric = element("metric");
  const before = metric.value;
  metric.replaceChildren(...names.map((name) => make("option", { value: name, text: name })));
  metric.value = names.includes(before) ? before : names.includes("accuracy") ? "accuracy" : names[0] || "";
}

/* ---- the panels ---- */

/** The curves of one quantity, a line with a band for each configuration; ``y`` takes the points of a run. */
function curves(x, y, dash, label = "") {
  const series = [];
  for (const group of shownGroups()) {
    const runs = [];
    for (const run of group.runs) {
      const known = page.data.get(run.id);
      const values = known?.points && y(known.points, known);
      if (values && known.points.uploads.length) runs.push({ x: x(known.points), y: values, id: run.id });
    }
    if (runs.length) series.push({ name: group.name + label, colour: group.colour, dash, runs });
  }
  return series;
}

const uploads = PLACES.uploads[1];
const scaled = (values, unit) => values.map((value) => (value === null ? null : value * unit));

const PANELS = [
  {
    id: "metric", title: () => element("metric").value || "metric",
    draw: (canvas) => {
      const [xlabel, x] = PLACES[element("against").value];
      const name = element("metric").value;
      const kind = element("smoothed").checked ? "smoothed" : "metrics";
      const series = curves(x, (p) => p[kind][name]);
      const ends = series.flatMap((one) => one.runs.map((run) => run.x[run.x.length - 1])).filter((end) => end > 0);
      return Chart.lines(canvas, { xlabel, ylabel: name, xlog: Math.max(...ends) > FAR * Math.min(...ends), series });
    },
  },
  ...[["up", "MB up"], ["down", "MB down"]].map(([way, label]) => ({
    id: `mb-${way}`, title: () => label,
    note: "Dashed: full precision, the length of a real float32 frame times the same uploads" + (way === "down" ? " and steps." : "."),
    draw: (canvas) => Chart.lines(canvas, {
      xlabel: "uploads", ylabel: label, ylog: true,
      series: [...curves(uploads, (p) => scaled(p[`bytes_${way}`], 1e-6)), ...curves(uploads, (p, run) => run[`full_${way}`] && scaled(run[`full_${way}`], 1e-6), "dashed", ", full precision")],
    }),
  })),
  {
    id: "staleness", title: () => "staleness",
    draw: (canvas) => {
      const series = [];
      for (const group of shownGroups()) {
        const counts = {};
        for (const run of group.runs)
          for (const [tau, count] of Object.entries(page.data.get(run.id)?.staleness || {})) counts[tau] = (counts[tau] || 0) + count;
        if (Object.keys(counts).length) series.push({ name: group.name, colour: group.colour, counts });
      }
      return Chart.histogram(canvas, { xlabel: "staleness", ylabel: "share of updates", series });
    },
  },
  { id: "in-flight", title: () => "tasks in flight", y: (p) => p.in_flight },
  { id: "buffer", title: () => "updates in the buffer", y: (p) => p.buffer, optional: true },
  { id: "residual", title: () => "‖x − x̂‖", y: (p) => p.residual, ylog: true },
  { id: "server-error", title: () => "error of the server's quantizer", ylabel: "squared relative error", y: (p) => p.server_error },
  { id: "client-error", title: () => "error of the clients' quantizer", ylabel: "squared relative error", y: (p) => p.client_error, note: "Measured on one task per evaluation; only the simulator measures it." },
];

function build() {
  for (const [value, [label]] of Object.entries(PLACES)) element("against").append(make("option", { value, text: label }));
  for (const panel of PANELS) {
    panel.heading = make("span");
    panel.canvas = make("canvas", { role: "img" });
    const buttons = [["PNG", savePicture], ["CSV", saveTable]].map(([text, save]) =>
      make("button", { type: "button", text, "aria-label": `Download ${panel.id} as ${text}`, onclick: () => save(panel) }));
    const figure = make("figure", { id: `panel-${panel.id}` }, make("figcaption", {}, panel.heading, ...buttons), panel.canvas, make("div", { className: "tip", hidden: true, "aria-hidden": "true" }));
    if (panel.note) figure.append(make("p", { className: "note", text: panel.note }));
    element("panels").append(panel.figure = figure);
  }
  for (const id of ["metric", "against", "smoothed"]) element(id).addEventListener("change", draw);
  element("filter").addEventListener("input", list);
  element("choices").addEventListener("submit", (event) => event.preventDefault());
  element("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  let wait;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(draw, 100); });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (page.groups.size) draw();
}

/** Draw every panel, each in a task of its own, so that the page never stands still. */
function draw() {
  clearTimeout(page.drawing);
  const left = [...PANELS];
  const next = () => {
    const panel = left.shift();
    if (!panel) return finished();
    panel.heading.textContent = panel.title();
    const plain = (canvas) => Chart.lines(canvas, { xlabel: "uploads", ylabel: panel.ylabel || panel.title(), ylog: panel.ylog, series: curves(uploads, panel.y) });
    panel.figure.hidden = false; // a hidden canvas has no size
    const drawn = (panel.draw || plain)(panel.canvas);
    panel.figure.hidden = Boolean(panel.optional) && drawn.every((one) => one.mean.every((value) => !value)); // always 0 where every evaluation follows a step
    page.drawn.set(panel.id, drawn);
    panel.canvas.setAttribute("aria-label", describe(panel.title(), drawn));
    page.drawing = setTimeout(next, 0);
  };
  page.drawing = setTimeout(next, 0);
}

function describe(title, drawn) {
  const last = (one) => { const values = one.mean.filter((value) => value !== null); return values.length ? Chart.number(values[values.length - 1]) : "nothing"; };
  return `${title}: ${drawn.map((one) => `${one.name} ends at ${last(one)}`).join("; ") || "nothing to show"}`;
}

function finished() {
  const problems = shownRuns().filter((run) => run.error || page.data.get(run.id)?.error);
  element("errors").replaceChildren(...problems.map((run) => make("p", { text: `${run.name}: ${run.error || page.data.get(run.id).error}` })));
  const running = page.runs.filter((run) => run.state === "running").length;
  element("state").textContent = embedded ? `report of ${embedded.made}` : `${page.runs.length} runs, ${running} running`;
  const timed = shownRuns().find((run) => page.data.get(run.id)?.events);
  Timeline.show(element("timeline"), timed, source);
  document.body.dataset.ready = "yes";
}

/* ---- files ---- */

function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function savePicture(panel) {
  panel.canvas.toBlob((blob) => save(`qafel-${panel.id}.png`, blob));
}

function table(panel) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = [["run", "x", "y"]];
  for (const one of page.drawn.get(panel.id) || [])
    for (const run of one.runs || [{ x: one.x, y: one.mean, id: "" }])
      run.x.forEach((place, k) => rows.push([run.id ? `${one.name} [${run.id}]` : one.name, String(place), run.y[k] === null ? "" : String(run.y[k])]));
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

function saveTable(panel) {
  save(`qafel-${panel.id}.csv`, new Blob([table(panel)], { type: "text/csv" }));
}

/* ---- what is new ---- */

/** Follow what is new; ``stale``: what the page has was not read just before. */
function listen(stale) {
  const stream = new EventSource("api/stream");
  stream.onopen = () => {
    if (stale) again().catch(complain); /* the stream does not tell what changed while it was closed */
    stale = true;
  };
  stream.addEventListener("runs", () => loadRuns().catch(complain));
  stream.addEventListener("changed", (event) => loadShown(new Set(JSON.parse(event.data))).catch(complain));
  stream.addEventListener("federation", (event) => Federation.show(element("federation"), JSON.parse(event.data)));
  stream.onerror = () => (element("state").textContent = "the server of this page does not answer; trying again");
}

/** Read everything that is shown again. */
function again() {
  page.data.clear();
  return loadRuns();
}

function complain(error) {
  element("errors").replaceChildren(make("p", { text: String(error.message || error) }));
  document.body.dataset.ready = "yes";
}

build();
loadRuns().then(() => false, (error) => complain(error) || true).then((failed) => embedded || listen(failed));
