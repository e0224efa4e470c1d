/* Writing: how numbers and times read, and how a page is changed without a flicker. */

const byId = (id) => document.getElementById(id);

/* Only what differs is written, so that a selection survives. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function writeClass(element, name) {
  if (element.className !== name) element.className = name;
}

function span(name) {
  const element = document.createElement("span");
  element.className = name;
  return element;
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${seconds.toPrecision(3)} s`;
  const whole = Math.floor(seconds), hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${rest} s`;
}

/* For clocks: whole seconds. */
const clock = (seconds) => (seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds));

/* For an estimate, which no second is true of. */
function about(seconds) {
  if (seconds < 10) return "a few seconds";
  if (seconds < 60) return `${10 * Math.round(seconds / 10)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return duration(60 * Math.round(seconds / 60));
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const wholePercent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);

/* A value of the job's metric; accuracies in percent. */
function measure(status, value) {
  if (status.accuracies) return percent(value);
  const short = Number(value.toPrecision(4));
  return Math.abs(short) < 1e6 ? String(short) : short.toExponential();
}
const targetOf = (end) => end.accuracy ?? end.target;
