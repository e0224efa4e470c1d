/* The workers: all of them as squares where they are many, and the slowest and the silent one by one. */

/* Workers shown before the reader asks for more. */
const folded = () => (matchMedia("(max-width: 900px)").matches ? 8 : 16);
let unfolded = false;

const COLUMNS = [
  ["Rank", "number rank"], ["Host", "name host"], ["Device", "name device"], ["State", "state-cell"], ["Steps", "number"],
  ["Step", "number"], ["Transmission", "number transmission"], ["Computing", "number"], ["Samples/s", "number"], ["Heard", "number"],
  ["Last decision", "decision"],
];
const STATES = {
  t: "training", e: "evaluating", w: "waiting", p: "pushing and pulling", l: "left out", s: "silent",
  n: "not seen yet", d: "ended", x: "lost",
};
const classOf = (state) => state.replaceAll(" ", "-");

function newRow() {
  const row = document.createElement("tr");
  for (const [label, name] of COLUMNS) {
    const cell = row.insertCell();
    cell.className = name;
    cell.dataset.label = label;
  }
  row.cells[3].append(document.createElement("span"), span("mark"), span("whom"));
  row.cells[10].append(document.createElement("b"), document.createElement("span"));
  return row;
}

/* Those of a list that are shown. */
const shownOf = (status, list) => (status.many && !unfolded ? list.slice(0, folded()) : list);

function showWorkers(status) {
  const body = byId("workers"), shown = shownOf(status, status.workers);
  body.parentElement.classList.toggle("told", !status.workers.some((worker) => worker.action)); // no rule decides
  while (body.rows.length > shown.length) body.deleteRow(-1);
  while (body.rows.length < shown.length) body.append(newRow());
  shown.forEach((worker, place) => showWorker(body.rows[place], worker));
  showFold(status);
}

function showWorker(row, worker) {
  const cells = row.cells, silent = worker.state === "silent";
  row.dataset.rank = worker.rank;
  write(cells[0], String(worker.rank));
  write(cells[1], worker.host || "–");
  cells[1].title = worker.host; // long names are cut off
  write(cells[2], worker.device || "–");
  cells[2].title = worker.device;
  write(cells[3].children[0], silent ? `silent for ${clock(worker.silence_s)}` : worker.state);
  writeClass(cells[3].children[0], `state ${classOf(worker.state)}`);
  write(cells[3].children[1], worker.mark);
  write(cells[3].children[2], worker.whom ? `for ${worker.whom}` : "");
  write(cells[4], number(worker.local_steps));
  write(cells[5], duration(worker.step_time_s));
  write(cells[6], duration(worker.transmission_time_s));
  write(cells[7], wholePercent(worker.computing_share));
  write(cells[8], worker.samples_per_s > 0 ? number(worker.samples_per_s) : "–");
  write(cells[9], worker.heard_s === null ? "never" : worker.heard_s < 1 ? "now" : `${clock(worker.heard_s)} ago`);
  write(cells[10].children[0], worker.action ? `${worker.action} ` : "");
  write(cells[10].children[1], worker.reason || "–");
}

function showFold(status) {
  const came = status.workers.length, button = byId("more");
  byId("all").hidden = button.hidden = !status.many;
  if (!status.many) return;
  write(button, unfolded ? "Show fewer" : `Show ${number(came)}${came < status.num_workers ? ` of ${number(status.num_workers)}` : ""}`);
  button.setAttribute("aria-expanded", unfolded);
  const counts = byId("counts"), entries = Object.entries(status.states);
  while (counts.children.length > entries.length) counts.lastElementChild.remove();
  while (counts.children.length < entries.length) counts.append(span("key"));
  entries.forEach(([state, count], place) => {
    write(counts.children[place], `${number(count)} ${state}`);
    writeClass(counts.children[place], `key ${classOf(state)}`);
  });
  showStrip(status.cells, status.num_workers);
  const first = `Below, ${number(shownOf(status, status.workers).length)} of them: marked, silent and awaited ones first, then the slowest.`;
  write(byId("each"), status.cells.each > 1 ? `A square is ${status.cells.each} workers, red where one is silent. ${first}` : first);
}

function showStrip({ each, letters }, numWorkers) {
  const strip = byId("strip");
  while (strip.children.length > letters.length) strip.lastElementChild.remove();
  while (strip.children.length < letters.length) strip.append(document.createElement("i"));
  [...letters].forEach((letter, place) => {
    const cell = strip.children[place];
    if (cell.dataset.letter === letter) return;
    cell.dataset.letter = letter;
    cell.className = classOf(STATES[letter]);
    const first = place * each, last = Math.min(first + each, numWorkers) - 1;
    cell.title = each > 1 ? `workers ${first} to ${last}` : `worker ${first}: ${STATES[letter]}`;
  });
}

byId("more").addEventListener("click", () => {
  unfolded = !unfolded;
  show(latest);
});
