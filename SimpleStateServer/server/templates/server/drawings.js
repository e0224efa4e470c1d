/* The timeline and the curves, in SVG. */

const SVG = "http://www.w3.org/2000/svg";

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

/* A length such as 1, 2 or 5 times a power of ten, so that `parts` of it fit in, or a few more. */
function tick(span, parts) {
  const rough = span / parts, power = 10 ** Math.floor(Math.log10(rough));
  return [5, 2, 1].map((factor) => factor * power).find((length) => length <= rough * 1.0001) ?? power;
}

/* The same of time: in whole minutes and hours where it is long. */
function timeTick(span, parts) {
  const unit = [86400, 3600, 60].find((length) => span / parts >= length) ?? 1;
  return unit * tick(span / unit, parts);
}

function axisTime(seconds) {
  if (seconds >= 2 * 86400) return `${Number((seconds / 86400).toPrecision(3))} d`;
  if (seconds >= 2 * 3600) return `${Number((seconds / 3600).toPrecision(3))} h`;
  return seconds >= 120 ? `${Number((seconds / 60).toPrecision(3))} min` : `${Number(seconds.toPrecision(3))} s`;
}

/* ------------------------------------------------------------------------------------------------ timeline */

function showTimeline(status) {
  const timeline = status.timeline;
  showLegend(timeline.legend);
  const svg = byId("timeline");
  const lanes = shownOf(status, timeline.lanes);
  const lane = 20, left = 12 + 7 * Math.max(2, String(status.num_workers - 1).length), axis = 20;
  const height = lanes.length * lane + axis;
  const width = canvas(svg, height);
  const seconds = Math.max(timeline.seconds, 0.001);
  const x = (age) => left + (width - left) * (1 - age / seconds);
  const shapes = [];
  const step = timeTick(seconds, Math.max(2, Math.floor(width / 160)));
  for (let age = 0; age <= seconds; age += step) {
    const at = x(age);
    shapes.push(shape("line", { class: "grid", x1: at, x2: at, y1: 0, y2: height - axis + 4 }));
    if (age && (at < left + 24 || at > width - 90)) continue;
    const end = timeline.ends_s < 1 ? "now" : `${clock(timeline.ends_s)} ago`;
    shapes.push(shape("text", { x: at, y: height - 3, "text-anchor": age ? "middle" : "end" }, age ? `−${axisTime(age)}` : end));
  }
  lanes.forEach(({ rank, spans }, place) => {
    const y = place * lane;
    shapes.push(shape("text", { x: left - 8, y: y + lane / 2 + 4, "text-anchor": "end" }, String(rank)));
    for (const [kind, from, until, round] of spans) {
      const rectangle = shape("rect", {
        class: kind, x: x(from), y: y + 2.5, width: Math.max(x(until) - x(from) - (until ? 0.7 : 0), 0.3), height: lane - 5,
      });
      const name = timeline.legend.find(([each]) => each === kind)[1];
      rectangle.append(shape("title", {}, `worker ${rank}, round ${round}: ${name}, ${duration(from - until)}`));
      shapes.push(rectangle);
    }
  });
  svg.replaceChildren(...shapes);
}

function showLegend(entries) {
  const legend = byId("legend");
  const told = JSON.stringify(entries);
  if (legend.dataset.told === told) return;
  legend.dataset.told = told;
  legend.replaceChildren(...entries.map(([kind, text]) => {
    const key = span(`key ${kind}`);
    key.textContent = text;
    return key;
  }));
}

/* -------------------------------------------------------------------------------------------------- curves */

/* `points` are [seconds since the job began, value]; `dots` are such points with a text; `level` is a dashed line;
   `events` are marked. */
function drawCurve(svg, points, { low, high, format, none, dots = [], level = null, events = [] }) {
  const height = 170, left = 52, axis = 20, top = 26, right = 8;
  const width = canvas(svg, height);
  if (points.length === 0) {
    svg.replaceChildren(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, none));
    return;
  }
  const longest = Math.max(...points.map(([at]) => at), 0.001);
  const x = (at) => left + (width - left - right) * Math.max(at, 0) / longest;
  const y = (value) => top + (height - top - axis) * (high - value) / (high - low);
  const shapes = [];
  const step = tick(high - low, 3);
  for (let times = Math.ceil(low / step - 1e-9); times * step <= high + step * 1e-6; times += 1) {
    const value = times * step || 0; // never -0
    shapes.push(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    shapes.push(shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value, step)));
  }
  const apart = timeTick(longest, Math.max(2, Math.floor(width / 130)));
  for (let at = 0; at <= longest; at += apart) {
    if (at && x(at) > width - 30) continue;
    shapes.push(shape("text", { x: x(at), y: height - 3, "text-anchor": at ? "middle" : "start" }, at ? axisTime(at) : "0"));
  }
  if (level !== null) {
    shapes.push(shape("line", { class: "target", x1: left, x2: width - right, y1: y(level), y2: y(level) }));
    shapes.push(shape("text", { class: "label", x: left + 6, y: y(level) - 5 }, `target ${format(level, 0)}`));
  }
  for (const [at, kind, text] of events) {
    if (at > longest) continue;
    const mark = shape("line", { class: "event", x1: x(at), x2: x(at), y1: top - 6, y2: height - axis });
    mark.append(shape("title", {}, `${kind}: ${text}`));
    shapes.push(mark);
  }
  shapes.push(shape("polyline", { class: "curve", points: points.map(([at, value]) => `${x(at)},${y(value)}`).join(" ") }));
  for (const [at, value, text, name] of dots) {
    shapes.push(shape("circle", { class: name, cx: x(at), cy: y(value), r: 4 }));
    const atEnd = x(at) > width - 60;
    shapes.push(shape("text", {
      class: "label", x: x(at) + (atEnd ? 4 : 0), y: y(value) - 9, "text-anchor": atEnd ? "end" : "middle",
    }, text));
  }
  svg.replaceChildren(...shapes);
}

function showEvaluations(status) {
  const points = status.accuracies ?? status.values, target = targetOf(status.end);
  const values = [...points.map(([, value]) => value), ...(target === null ? [] : [target])];
  const least = Math.min(...values), most = Math.max(...values);
  // Never so near that noise looks like news.
  const unit = status.accuracies ? 1 : Math.max(Math.abs(least), Math.abs(most)) || 1;
  const margin = Math.max(0.05 * (most - least), 0.005 * unit);
  const [lowest, highest] = status.accuracies ? [0, 1] : [-Infinity, Infinity];
  const low = Math.max(least - margin, lowest), high = Math.min(most + 2 * margin, highest);
  const svg = byId("evaluations"), dots = [];
  if (points.length) {
    const last = points.at(-1), best = status.best;
    if (best[0] < last[0]) dots.push([...best, `best ${measure(status, best[1])}`, "best"]);
    const near = best[0] < last[0] && last[0] - best[0] < 0.15 * last[0]; // two texts would be one on the other
    dots.push([last[0], last[1], near ? "" : measure(status, last[1]), "dot"]);
  }
  const inPercent = (value, step) => `${(100 * value).toFixed(step < 0.00999 ? 1 : 0)} %`;
  const format = status.accuracies ? inPercent : (value) => measure(status, value);
  svg.setAttribute("aria-label", `Test ${status.metric.name} over time`);
  const { events } = status;
  drawCurve(svg, points, { low, high, format, none: "No evaluation was told yet.", dots, level: target, events });
  byId("lost").hidden = !status.history_lost;
  write(byId("lost"), status.history_lost
    ? `The state server was restarted ${clock(status.resumed_s)} ago; what was evaluated before is lost.` : "");
}

function showLosses(status) {
  const values = status.losses.map(([, value]) => value);
  const least = Math.min(...values), most = Math.max(...values), margin = 0.05 * (most - least || Math.abs(most) || 1);
  const format = (value) => String(Number(value.toPrecision(4)));
  const { events, losses } = status, none = "No loss was told yet.";
  drawCurve(byId("losses"), losses, { low: least - margin, high: most + margin, format, none, events });
}

/* The latest first. */
function showEvents({ events }) {
  byId("events").hidden = !events.length;
  const list = byId("events-list");
  while (list.children.length > events.length) list.lastElementChild.remove();
  while (list.children.length < events.length) {
    const line = document.createElement("li");
    line.append(document.createElement("small"), document.createElement("b"), document.createElement("span"));
    list.append(line);
  }
  events.toReversed().forEach(([at, kind, text, round], place) => {
    const [when, name, about] = list.children[place].children;
    write(when, `${clock(at)}, round ${number(round)}`);
    write(name, kind);
    write(about, text);
  });
}

function showRates(status) {
  const points = status.rates, most = Math.max(...points.map(([, rate]) => rate), 1e-9);
  const format = (value) => number(value);
  const none = status.samples > 0 ? "Not measured for long enough yet." : "The workers do not say how many samples they train on.";
  drawCurve(byId("rates"), points, { low: 0, high: 1.08 * most, format, none, events: status.events });
  byId("rates-known").hidden = status.resumed_s === null;
  const since = status.generation > 1 ? "workers were lost or came" : "the state server was restarted";
  write(byId("rates-known"), status.resumed_s === null ? "" : `Measured since ${since}, ${clock(status.resumed_s)} ago.`);
}
