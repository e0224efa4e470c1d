/* Asks for the state again and again, and shows it. */

const REFRESH_MS = 1000;
let latest = JSON.parse(byId("status").textContent);
let lastAnswer = Date.now();

/* The file that is left of the jobs has the states of all in it, and there is no server to ask. */
const { all } = latest, isFile = all !== undefined;

function show(status) {
  latest = status;
  showJobs(status);
  byId("content").hidden = status.job === null;
  if (status.job === null) {
    document.title = "ESync state server";
    write(byId("title"), "State server");
    write(byId("job"), "");
    notice("No job has begun yet. This page shows it as soon as one does.", false);
    return;
  }
  const gone = status.state === "at work" ? "" : `${status.state} · `;
  const share = status.end.share === null ? "" : `${Math.floor(100 * status.end.share)} % · `;
  document.title = `${gone}${share}round ${status.round} · ${status.title}`;
  showState(status);
  showFigures(status);
  showEnd(status);
  showEvaluations(status);
  showLosses(status);
  showRates(status);
  showEvents(status);
  showTimeline(status);
  showWorkers(status);
}

async function refresh() {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (answer.status === 404) {
      notice("This server does not know the job any more: it was restarted, or has made room for others. These are the last values.");
    } else {
      if (!answer.ok) throw new Error(String(answer.status));
      show(await answer.json());
    }
    lastAnswer = Date.now();
    document.body.dataset.refreshes = Number(document.body.dataset.refreshes ?? 0) + 1;
  } catch {
    if (latest.state === "ended") return; // the server has ended with the job
    notice(`The state server has not answered for ${clock((Date.now() - lastAnswer) / 1000)}; these are its last values.`);
  }
  setTimeout(refresh, REFRESH_MS);
}

if (isFile) {
  byId("links").hidden = true;
  const of = ({ hash }) => all[decodeURIComponent(hash.slice(1))] ?? latest;
  addEventListener("hashchange", () => show(of(location)));
  show(of(location));
} else {
  byId("metrics").setAttribute("href", ofOneJob ? "../../metrics" : "metrics");
  show(latest);
  setTimeout(refresh, REFRESH_MS);
}
addEventListener("resize", () => show(latest));
