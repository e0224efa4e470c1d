"use strict";

const REFRESH_MS = 1000;
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/* Only what differs is written, so that nothing flickers and a selection survives. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function writeClass(element, name) {
  if (element.className !== name) element.className = name;
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${seconds.toPrecision(3)} s`;
  const whole = Math.floor(seconds), hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${rest} s`;
}

/* For clocks: whole seconds. */
const clock = (seconds) => (seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds));

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
const percent = (value) => `${(100 * value).toFixed(1)} %`;

/* ------------------------------------------------------------------------------------------------ figures */

function showFigures(status) {
  write(byId("job"), status.job);
  write(byId("round"), number(status.round));
  const counts = Object.entries(status.states).filter(([, count]) => count).map(([state, count]) => `${count} ${state}`);
  showFigure("workers-count", number(status.num_workers), counts.join(", "));
  const measured = status.samples > 0;
  showFigure("throughput", measured ? `${number(status.samples_per_s)} /s` : "–", measured ? "samples" : "no samples reported");
  const last = status.accuracies.at(-1);
  const best = Math.max(...status.accuracies.map(([, accuracy]) => accuracy));
  showFigure("accuracy", last ? percent(last[1]) : "–", last ? `best ${percent(best)}` : "not evaluated yet");
  showFigure("elapsed", clock(status.elapsed_s), "since the job began");
  showFigure("policy", status.policy, status.policy === "preprint" ? `epsilon ${duration(status.epsilon_s)}` : "reach-server time");
}

function showFigure(id, value, note) {
  const element = byId(id);
  if (!element.firstElementChild) element.append(document.createElement("span"), document.createElement("small"));
  write(element.children[0], value);
  write(element.children[1], note);
}

/* ------------------------------------------------------------------------------------------------ workers */

const COLUMNS = [
  ["Rank", "number rank"], ["Host", "name host"], ["Device", "name device"], ["State", "state-cell"], ["Local steps", "number"],
  ["Step", "number"], ["Transmission", "number"], ["Samples/s", "number"], ["Heard", "number"],
  ["Last decision", "decision"],
];

function newRow() {
  const row = document.createElement("tr");
  for (const [label, name] of COLUMNS) {
    const cell = row.insertCell();
    cell.className = name;
    cell.dataset.label = label;
  }
  row.cells[3].append(document.createElement("span"), document.createElement("span"));
  row.cells[3].children[1].className = "straggler";
  row.cells[9].append(document.createElement("b"), document.createElement("span"));
  return row;
}

function showWorkers(status) {
  const body = byId("workers");
  while (body.rows.length > status.workers.length) body.deleteRow(-1);
  while (body.rows.length < status.workers.length) body.append(newRow());
  status.workers.forEach((worker, place) => {
    const row = body.rows[place], cells = row.cells;
    row.dataset.rank = worker.rank;
    const silent = worker.state === "silent";
    write(cells[0], String(worker.rank));
    write(cells[1], worker.host || "–");
    cells[1].title = worker.host; // long names are cut off
    write(cells[2], worker.device || "–");
    write(cells[3].children[0], silent ? `silent for ${clock(worker.silence_s)}` : worker.state);
    writeClass(cells[3].children[0], `state ${worker.state.replaceAll(" ", "-")}`);
    write(cells[3].children[1], worker.straggler ? "straggler" : "");
    write(cells[4], number(worker.local_steps));
    write(cells[5], duration(worker.step_time_s));
    write(cells[6], duration(worker.transmission_time_s));
    write(cells[7], worker.samples_per_s > 0 ? number(worker.samples_per_s) : "–");
    write(cells[8], worker.heard_s === null ? "never" : worker.heard_s < 1 ? "now" : `${clock(worker.heard_s)} ago`);
    write(cells[9].children[0], worker.action ? `${worker.action} ` : "");
    write(cells[9].children[1], worker.reason || "–");
  });
  const hidden = status.num_workers - status.workers.length;
  byId("shown").hidden = !hidden;
  write(byId("shown"), hidden ? `The straggler, silent workers and the slowest: ${status.workers.length} of ${number(status.num_workers)}.` : "");
}

/* ----------------------------------------------------------------------------------------------- drawings */

function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function canvas(svg, height) {
  const width = Math.max(svg.getBoundingClientRect().width, 200);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  return width;
}

/* A round length such as 1, 2 or 5 seconds times a power of ten, so that `parts` of it fit, or a few more. */
function tick(span, parts) {
  const rough = span / parts, power = 10 ** Math.floor(Math.log10(rough));
  return [5, 2, 1].map((factor) => factor * power).find((length) => length <= rough);
}

function showTimeline(timeline) {
  const svg = byId("timeline");
  const lane = timeline.lanes.length > 24 ? 9 : 20, left = 34, axis = 20;
  const height = timeline.lanes.length * lane + axis;
  const width = canvas(svg, height);
  const seconds = Math.max(timeline.seconds, 0.001);
  const x = (age) => left + (width - left) * (1 - age / seconds);
  const shapes = [];
  const step = tick(seconds, Math.max(2, Math.floor(width / 140)));
  for (let age = 0; age <= seconds; age += step) {
    const at = x(age);
    shapes.push(shape("line", { class: "grid", x1: at, x2: at, y1: 0, y2: height - axis + 4 }));
    if (at < left + 24 && age) continue;
    shapes.push(shape("text", { x: at, y: height - 3, "text-anchor": age ? "middle" : "end" }, age ? `−${Number(age.toPrecision(3))} s` : "now"));
  }
  timeline.lanes.forEach(({ rank, silent, spans }, place) => {
    const y = place * lane;
    if (lane > 10 || place % 4 === 0) shapes.push(shape("text", { x: left - 8, y: y + lane / 2 + 4, "text-anchor": "end" }, String(rank)));
    for (const [round, entered, synced, left] of spans) {
      const until = left ?? silent;
      const computed = synced === null ? until ?? 0 : synced;
      bar(shapes, "computing", x(entered), x(computed), y, lane, `rank ${rank}, round ${round}: computing ${duration(entered - computed)}`);
      if (synced !== null) {
        bar(shapes, "waiting", x(synced), x(until ?? 0), y, lane, `rank ${rank}, round ${round}: aggregating ${duration(synced - (until ?? 0))}`);
      }
    }
    if (silent !== null) bar(shapes, "silent", x(silent), x(0), y, lane, `rank ${rank}: silent for ${clock(silent)}`);
  });
  svg.replaceChildren(...shapes);
}

function bar(shapes, name, from, to, y, lane, title) {
  const gap = lane > 10 ? 5 : 2;
  const rectangle = shape("rect", { class: name, x: from, y: y + gap / 2, width: Math.max(to - from - 0.7, 0.3), height: lane - gap });
  rectangle.append(shape("title", {}, title));
  shapes.push(rectangle);
}

function showAccuracies(points) {
  byId("accuracy-section").hidden = points.length === 0;
  if (points.length === 0) return;
  const svg = byId("accuracies"), height = 160, left = 42, axis = 18, top = 8;
  const width = canvas(svg, height);
  const longest = Math.max(points.at(-1)[0], 0.001);
  const x = (elapsed) => left + (width - left - 6) * elapsed / longest;
  const y = (accuracy) => top + (height - top - axis) * (1 - accuracy);
  const shapes = [];
  for (const level of [0, 0.25, 0.5, 0.75, 1]) {
    shapes.push(shape("line", { class: "grid", x1: left, x2: width, y1: y(level), y2: y(level) }));
    shapes.push(shape("text", { x: left - 6, y: y(level) + 4, "text-anchor": "end" }, `${100 * level} %`));
  }
  shapes.push(shape("text", { x: left, y: height - 3 }, "0"));
  shapes.push(shape("text", { x: width, y: height - 3, "text-anchor": "end" }, clock(longest)));
  shapes.push(shape("polyline", { class: "curve", points: points.map(([elapsed, accuracy]) => `${x(elapsed)},${y(accuracy)}`).join(" ") }));
  const [elapsed, accuracy] = points.at(-1);
  shapes.push(shape("circle", { class: "dot", cx: x(elapsed), cy: y(accuracy), r: 3.5 }));
  svg.replaceChildren(...shapes);
}

/* ------------------------------------------------------------------------------------------------ refresh */

let latest = JSON.parse(byId("status").textContent);
let lastAnswer = Date.now();

function notice(text, bad = true) {
  writeClass(byId("notice"), bad ? "bad" : "");
  byId("notice").hidden = !text;
  write(byId("notice"), text);
}

function show(status) {
  byId("content").hidden = status.job === null;
  document.title = status.job === null ? "ESync state server" : `round ${status.round} · ESync`;
  if (status.job === null) {
    write(byId("job"), "");
    notice("No job has begun yet. This page shows it as soon as one does.", false);
    return;
  }
  notice(status.quiet ? `No worker was heard for ${clock(status.quiet_s)}: the job has ended, or waits for a lost worker.` : "");
  showFigures(status);
  showTimeline(status.timeline);
  showWorkers(status);
  showAccuracies(status.accuracies);
}

async function refresh() {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    latest = await answer.json();
    lastAnswer = Date.now();
    show(latest);
    document.body.dataset.refreshes = Number(document.body.dataset.refreshes ?? 0) + 1;
  } catch {
    notice(`The state server has not answered for ${clock((Date.now() - lastAnswer) / 1000)}; these are its last values.`);
  }
  setTimeout(refresh, REFRESH_MS);
}

show(latest);
addEventListener("resize", () => show(latest));
setTimeout(refresh, REFRESH_MS);
