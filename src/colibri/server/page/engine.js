// What the engine says of itself: its state, its figures and the experts that it uses.
import { events } from "./events.js";
import { Graph } from "./graph.js";
import { askForKey, keyEntered } from "./keys.js";
import { ExpertMap } from "./map.js";
import { ask, KeyNeeded } from "./requests.js";

const POLL_MS = 2000;
const ANSWER_MS = 5000; // within which /health must answer
const $ = (id) => document.getElementById(id);
const map = new ExpertMap($("map"), $("map-hint"));
const graph = new Graph($("graph"));
const known = { health: { status: "unknown" }, open: false, locked: false };

export function startEngine() {
  $("enter-key").addEventListener("click", askForKey);
  watchHealth();
  watchReports();
}

// ---- the state ----------------------------------------------------------------------------------------------------

const CONNECTING = "connecting";
const STATES = {
  ok: "connected", unknown: CONNECTING, loading: "the model is loading", restarting: "the engine is down and starts again",
  stalled: "the engine does not answer", failed: "the engine failed", draining: "the server is shutting down",
  reloading: "the model is loaded again", stopped: "the server is shutting down",
};

function showState() {
  const { health, open, locked } = known;
  let text = health ? (STATES[health.status] ?? `the engine is ${health.status}`) : "the server cannot be reached";
  let good = health?.status === "ok";
  if (good && locked) [text, good] = ["an API key is needed", false];
  else if (good && !open) [text, good] = [CONNECTING, false];
  $("state").textContent = text;
  $("state").title = health?.reason ?? "";
  document.body.classList.toggle("down", !good && text !== CONNECTING);
  $("enter-key").hidden = !locked;
}

async function watchHealth() {
  for (;;) {
    known.health = await fetch("health", { signal: AbortSignal.timeout(ANSWER_MS) })
      .then((answer) => answer.json())
      .then((body) => (body?.status ? body : null))
      .catch(() => null);
    showState();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

async function watchReports() {
  for (;;) {
    try {
      const response = await ask("live");
      Object.assign(known, { open: true, locked: false });
      showState();
      for await (const report of events(response.body)) show(report);
    } catch (error) {
      known.locked = error instanceof KeyNeeded;
    }
    known.open = false;
    showState();
    await (known.locked ? keyEntered() : new Promise((resolve) => setTimeout(resolve, POLL_MS / 2)));
  }
}

// ---- figures --------------------------------------------------------------------------------------------------------

function size(bytes) {
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}

function share(part, whole, ofNothing = 0) {
  return whole ? part / whole : ofNothing;
}

function describe({ model, sequences }) {
  $("model").textContent = model.name;
  $("facts").textContent =
    `${model.layers} layers × ${model.experts} experts, ${model.experts_per_token} a token · ` +
    `${model.quantization} · ${sequences} × ${model.context} tokens · ${model.threads} threads, ${model.isa}`;
  map.resize(model.layers, model.experts);
}

function show(report) {
  if (report.health) {
    known.health = report.health;
    showState();
  } else if (report.model) describe(report);
  else figures(report);
}

function figures(report) {
  $("rate").textContent = report.rate.toFixed(report.rate < 10 ? 1 : 0);
  $("running").textContent = report.running;
  $("waiting").textContent = report.waiting;
  $("step").textContent = `${report.step_ms.toFixed(0)} ms`;
  graph.add(report.rate);
  const { rss_bytes: used, budget_bytes: budget } = report.memory;
  $("memory").value = share(used, budget);
  $("memory-text").textContent = `${size(used)} of ${size(budget)}`;
  const [held, blocks] = report.cache;
  $("cache").value = share(held, blocks);
  $("cache-text").textContent = `${held} of ${blocks} blocks`;
  const { hits, misses, experts_touched: touched, experts_total: total } = report.routing;
  const found = share(hits, hits + misses, 1);
  $("experts-text").textContent = `${touched} of ${total} used, ${(100 * found).toFixed(1)} % found in memory`;
  if (report.experts) map.add(report.experts);
}
