/* The numbers at the top, the way to the end, the jobs, and what is to be said at once. */

function showFigures(status) {
  write(byId("title"), status.title);
  write(byId("job"), status.job);
  const end = status.end;
  showFigure("round", number(status.round), end.rounds ? `of ${number(end.rounds[1])}` : "the latest that was entered");
  const counts = Object.entries(status.states).map(([state, count]) => `${number(count)} ${state}`);
  showFigure("workers-count", number(status.num_workers), counts.join(", "));
  showFigure("computing", wholePercent(status.computing_share), "of the workers' time, last rounds");
  const measured = status.samples > 0;
  const mean = status.state === "at work" ? "samples" : "samples, mean of the job";
  showFigure("throughput", measured ? `${number(status.samples_per_s)} /s` : "–", measured ? mean : "no samples reported");
  for (const element of document.getElementsByClassName("metric")) write(element, `Test ${status.metric.name}`);
  const last = (status.accuracies ?? status.values).at(-1);
  const target = targetOf(end) === null ? "" : `, target ${measure(status, targetOf(end))}`;
  const none = status.history_lost ? "not told since the restart" : "not evaluated yet";
  const best = last ? `best ${measure(status, status.best[1])}` : none;
  showFigure("value", last ? measure(status, last[1]) : "–", `${best}${target}`);
  const since = status.beginning_known ? "since the job began" : "since this server knows the job";
  showFigure("elapsed", clock(status.elapsed_s), status.state === "at work" ? since : "until it was last heard");
  const way = status.way ? `, now ${status.way}` : "";
  const epsilon = status.epsilon_s === null ? "" : `, epsilon ${duration(status.epsilon_s)}`;
  const anchor = status.anchor === null ? "" : `, anchor ${number(status.anchor)}`;
  showFigure("policy", `${status.policy}${way}`, `${status.caption}${epsilon}${anchor}`);
}

function showFigure(id, value, note) {
  const element = byId(id);
  if (!element.firstElementChild) element.append(document.createElement("span"), document.createElement("small"));
  write(element.children[0], value);
  write(element.children[1], note);
}

function showEnd(status) {
  const { end, state, states } = status;
  const known = end.rounds || end.seconds || targetOf(end) !== null;
  byId("end").hidden = !known;
  if (!known) return;
  const bar = byId("bar");
  bar.hidden = end.share === null;
  const share = end.share ?? 0;
  bar.setAttribute("aria-valuenow", Math.round(100 * share));
  bar.firstElementChild.style.width = `${100 * share}%`;
  const parts = [];
  if (end.share !== null) parts.push(`${Math.floor(100 * share)} %`);
  const stands = states.silent && states.waiting; // a worker that waits for a lost one has no pace
  if (end.left_s !== null && !stands) parts.push(`about ${about(end.left_s)} left`);
  else if (end.share !== null && state === "at work" && !stands) parts.push("the time that is left is not known yet");
  if (end.rounds) parts.push(`${number(end.rounds[0])} of ${number(end.rounds[1])} rounds done`);
  if (end.seconds) parts.push(`${clock(end.seconds[0])} of ${clock(end.seconds[1])}`);
  if (targetOf(end) !== null) {
    const value = measure(status, targetOf(end)), name = `test ${status.metric.name}`;
    parts.push(`${parts.length ? "or ends" : "ends"} at ${status.accuracies ? `${value} ${name}` : `${name} ${value}`}`);
  }
  write(byId("left"), parts.join(" · "));
}

/* ---------------------------------------------------------------------------------------------------- jobs */

/* The page of a job is /jobs/ID/, that of the latest one /; links are relative, for servers that put it elsewhere. */
const ofOneJob = /\/jobs\/[^/]+\/$/.test(location.pathname);
const pageOf = (job) => (isFile ? `#${encodeURIComponent(job)}` : `${ofOneJob ? "../" : "jobs/"}${encodeURIComponent(job)}/`);

function showJobs({ job, jobs }) {
  const list = byId("jobs");
  list.hidden = jobs.count < 2;
  while (list.children.length > jobs.shown.length) list.lastElementChild.remove();
  while (list.children.length < jobs.shown.length) list.append(newJob());
  jobs.shown.forEach((each, place) => {
    const link = list.children[place];
    const page = pageOf(each.job);
    if (link.getAttribute("href") !== page) link.setAttribute("href", page);
    if (each.job === job) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    writeClass(link, `job ${each.state.replaceAll(" ", "-")}`);
    write(link.children[0], each.title);
    write(link.children[1], each.job);
    const workers = each.num_workers === 1 ? "1 worker" : `${number(each.num_workers)} workers`;
    write(link.children[2], `${workers}, round ${number(each.round)}, ${each.state}`);
  });
}

function newJob() {
  const link = document.createElement("a");
  link.append(document.createElement("b"), span("id"), span("about"));
  return link;
}

/* -------------------------------------------------------------------------------------------------- notices */

function notice(text, bad = true) {
  writeClass(byId("notice"), bad ? "bad" : "");
  byId("notice").hidden = !text;
  write(byId("notice"), text);
}

function showState(status) {
  if (status.state === "ended") {
    const lost = status.states.lost ?? 0;
    const fates = lost ? `${number(lost)} of ${number(status.num_workers)} workers had not left it in order.` : "All its workers have left it in order.";
    notice(`This job has ended after ${clock(status.elapsed_s)}. ${fates}`, lost > 0);
  } else if (status.state === "quiet") {
    notice(`No worker was heard for ${clock(status.quiet_s)}: the job has ended, or waits for a lost worker.`);
  } else notice(silentOnes(status));
}

/* The silent workers, and how many wait for them. */
function silentOnes({ states, workers }) {
  if (!states.silent) return "";
  const first = workers.find((worker) => worker.state === "silent");
  const others = states.silent - 1, waiting = states.waiting ?? 0;
  const who = first ? `Worker ${first.rank} has been silent for ${clock(first.silence_s)}` : `${number(states.silent)} workers are silent`;
  const more = first && others ? `, and so are ${number(others)} more` : "";
  return `${who}${more}${waiting ? `; ${number(waiting)} ${waiting === 1 ? "worker waits" : "workers wait"}` : ""}.`;
}
