"use strict";
/* The algorithm as it happened: clients train in parallel, report, the buffer fills to K, a step moves every x̂.
   Drawn from the events of a run, with play, pause and step. And the state of a federation, as tables. */

const Timeline = (() => {
  const LANES = 16;
  const SPAN = 4; /* server steps in the picture */
  let run = null;
  let state = null;

  async function show(section, wanted, source) {
    section.hidden = !wanted;
    if (!wanted || (run && run.id === wanted.id)) return wanted && state && paint();
    if (state) pause();
    run = wanted;
    let answer;
    try {
      answer = await source.events(wanted.id, 0);
    } catch (error) {
      if (run === wanted) run = null; /* the next drawing asks again */
      return complain(error);
    }
    if (run !== wanted) return;
    state = { section, source, events: answer.events, total: answer.total, at: 0, timer: null, buffer: answer.buffer };
    build();
    prepare();
    seek(Math.min(state.events.length - 1, 3 * answer.buffer));
  }

  function build() {
    const { section } = state;
    const button = (text, title, act) => make("button", { type: "button", text, title, onclick: act });
    state.play = button("▶ play", "Play the timeline", toggle);
    state.range = make("input", { type: "range", min: 0, max: Math.max(0, state.events.length - 1), value: 0, "aria-label": "Event of the timeline" });
    state.range.addEventListener("input", () => { pause(); seek(Number(state.range.value)); });
    state.text = make("p", { className: "note", role: "status" });
    state.canvas = make("canvas", { role: "img" });
    section.replaceChildren(
      make("h2", { id: "timeline-title", text: `What happened: ${run.name}` }),
      make("div", { className: "controls" }, state.play, button("◀ back", "One event back", () => { pause(); seek(state.at - 1); }), button("step ▶", "One event on", () => { pause(); seek(state.at + 1); }), state.range),
      state.canvas, state.text,
      make("p", { className: "note", text: "Bars are tasks; the number in front is the client. A line down is an update that reaches the server, with its staleness; a full buffer is a step, whose increment moves every hidden state." }));
  }

  /** Give every task a lane of its own while it runs. */
  function prepare() {
    const free = [];
    const tasks = new Map();
    let lanes = 0;
    state.events.forEach((event, k) => {
      const key = `${event[2]}/${event[3]}`;
      if (event[0] === "start") {
        free.sort((a, b) => b - a);
        const lane = free.length ? free.pop() : lanes++;
        tasks.set(key, { client: event[2], version: event[4], begin: event[1], end: Infinity, lane, first: k, last: Infinity, kind: "" });
      } else if (event[0] !== "step" && tasks.has(key)) {
        const task = tasks.get(key);
        Object.assign(task, { end: event[1], last: k, kind: event[0], staleness: event[4] });
        free.push(task.lane);
      }
    });
    state.tasks = [...tasks.values()];
    state.steps = state.events.map((event, k) => ({ event, k })).filter(({ event }) => event[0] === "step");
  }

  function toggle() {
    if (state.timer) return pause();
    state.play.textContent = "❚❚ pause";
    state.timer = setInterval(() => (state.at + 1 < state.events.length ? seek(state.at + 1) : pause()), 120);
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    state.play.textContent = "▶ play";
  }

  function seek(place) {
    state.at = Math.max(0, Math.min(state.events.length - 1, place));
    state.range.value = state.at;
    paint();
  }

  function paint() {
    if (!state || !state.events.length) return;
    const { context, width, height } = Chart.prepare(state.canvas);
    const colour = Chart.style;
    const now = state.events[state.at][1];
    const passed = state.steps.filter(({ k }) => k <= state.at);
    const from = passed.length > SPAN ? passed[passed.length - 1 - SPAN].event[1] : 0;
    const until = Math.max(now, from + 1e-9) + (now - from) * 0.08 + 1e-6;
    const left = 40;
    const right = width - 12;
    const bottom = height - 70;
    const x = (time) => left + ((time - from) / (until - from)) * (right - left);
    const lane = (k) => 12 + (k * (bottom - 24)) / LANES;
    const known = state.tasks.filter((task) => task.first <= state.at && (task.last > state.at || task.end >= from));
    context.textBaseline = "middle";
    for (const task of known.filter((one) => one.lane < LANES)) {
      const ended = task.last <= state.at;
      const y = lane(task.lane);
      const [a, b] = [x(Math.max(from, task.begin)), x(ended ? task.end : now)];
      context.fillStyle = task.kind === "lost" && ended ? colour("--bad") : colour("--accent");
      context.globalAlpha = ended ? 0.45 : 0.9;
      context.fillRect(a, y, Math.max(2, b - a), (bottom - 24) / LANES - 4);
      context.globalAlpha = 1;
      context.fillStyle = colour("--muted");
      context.textAlign = "right";
      if (!ended) context.fillText(String(task.client), left - 4, y + 5);
      if (ended && task.kind === "report") {
        context.strokeStyle = colour("--muted");
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(b, y);
        context.lineTo(b, bottom + 12);
        context.stroke();
        context.textAlign = "center";
        context.fillText(String(task.staleness), b, bottom + 20);
      }
    }
    for (const { event } of passed.filter((one) => one.event[1] >= from)) {
      context.strokeStyle = colour("--bad");
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x(event[1]), 6);
      context.lineTo(x(event[1]), bottom + 40);
      context.stroke();
      context.fillStyle = colour("--bad");
      context.textAlign = "center";
      context.fillText(`x̂ ${event[2]}`, x(event[1]), bottom + 52);
    }
    const last = passed.length ? passed[passed.length - 1].k : -1;
    const fill = state.events.slice(last + 1, state.at + 1).filter((event) => event[0] === "report").length;
    const size = Math.min(16, (right - left) / state.buffer - 3);
    for (let k = 0; k < state.buffer; k += 1) {
      context.fillStyle = k < fill ? colour("--accent") : colour("--grid");
      context.fillRect(left + k * (size + 3), bottom + 30, size, 10);
    }
    const flying = known.filter((task) => task.last > state.at).length;
    const hidden = Math.max(0, known.filter((task) => task.last > state.at && task.lane >= LANES).length);
    const text = `event ${state.at + 1} of ${state.events.length}${state.total > state.events.length ? ` (the first of ${state.total})` : ""}: ${words(state.events[state.at])}; version ${passed.length ? passed[passed.length - 1].event[2] : 0}, ${fill} of ${state.buffer} in the buffer, ${flying} tasks in flight${hidden ? `, ${hidden} of them not drawn` : ""}`;
    state.text.textContent = text;
    state.canvas.setAttribute("aria-label", text);
  }

  function words(event) {
    const time = `at ${event[1].toFixed(2)}`;
    if (event[0] === "start") return `${time} client ${event[2]} starts from version ${event[4]}`;
    if (event[0] === "report") return `${time} client ${event[2]} reports, staleness ${event[4]}`;
    if (event[0] === "step") return `${time} the server steps to version ${event[2]} and sends ${event[3].toLocaleString("en")} bytes`;
    return `${time} the task of client ${event[2]} is ${event[0]}`;
  }

  return { show };
})();

const Federation = (() => {
  function show(section, told) {
    section.hidden = false;
    const parts = [make("h2", { text: `Federation ${told.name}` })];
    if (told.error) parts.push(make("p", { className: "note", text: told.error }));
    const facts = make("dl", { className: "facts" });
    for (const [name, value] of told.facts || []) facts.append(make("div", {}, make("dt", { text: name }), make("dd", { text: value })));
    parts.push(facts);
    if (told.clients && told.clients.length) {
      const head = make("tr", {}, ...["client", "last seen", "versions behind", "decided tasks", "rejections"].map((text) => make("th", { scope: "col", text })));
      const rows = told.clients.map((row) => make("tr", {}, ...row.map((text) => make("td", { text }))));
      parts.push(make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Clients" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
    }
    section.replaceChildren(...parts);
  }
  return { show };
})();
