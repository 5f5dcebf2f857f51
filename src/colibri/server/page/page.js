// The page: a chat over the same API that every client uses, and what the engine says of itself.
import { events } from "./events.js";
import { ExpertMap } from "./map.js";
import { Graph } from "./graph.js";

const $ = (id) => document.getElementById(id);
const messages = [];
const map = new ExpertMap($("map"));
const graph = new Graph($("graph"));
let model = null;
let running = null; // AbortController of the answer under way

// ---- requests ---------------------------------------------------------------------------------------------------

function headers() {
  const key = sessionStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, options) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (response.status === 401) {
    await askForKey();
    return ask(path, options);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `The server answered with status ${response.status}.`);
  }
  return response;
}

let asking = null;
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("key", $("key").value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

// ---- chat -------------------------------------------------------------------------------------------------------

function bubble(role, text = "") {
  $("hint")?.remove();
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  $("messages").append(element);
  element.scrollIntoView({ block: "end" });
  return element;
}

async function send(text) {
  messages.push({ role: "user", content: text });
  bubble("user", text);
  const answer = bubble("assistant");
  const thought = answer.appendChild(document.createElement("span"));
  thought.className = "thought";
  const content = answer.appendChild(document.createElement("span"));
  answer.classList.add("busy");
  running = new AbortController();
  $("send").textContent = "Stop";
  let finish = null;
  let usage = null;
  const start = performance.now();
  try {
    const response = await ask("v1/chat/completions", {
      method: "POST",
      signal: running.signal,
      body: JSON.stringify({
        messages, stream: true, stream_options: { include_usage: true },
        temperature: Number($("temperature").value), max_tokens: Number($("tokens").value),
      }),
    });
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      thought.textContent += choice.delta.reasoning_content ?? "";
      content.textContent += choice.delta.content ?? "";
      const box = $("messages");
      if (box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
    }
    messages.push({ role: "assistant", content: content.textContent });
  } catch (error) {
    if (error.name === "AbortError") {
      finish = "stopped";
      messages.push({ role: "assistant", content: content.textContent });
    } else {
      messages.pop();
      answer.classList.add("error");
      content.textContent += error.message;
    }
  } finally {
    answer.classList.remove("busy");
    running = null;
    $("send").textContent = "Send";
  }
  note(answer, usage, finish, (performance.now() - start) / 1000);
}

function note(answer, usage, finish, seconds) {
  const parts = [];
  if (usage) parts.push(`${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s`);
  if (usage?.prompt_tokens_details.cached_tokens) parts.push(`${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens} prompt tokens reused`);
  if (finish === "length") parts.push("cut at the token limit");
  if (finish === "stopped") parts.push("stopped");
  if (!parts.length) return;
  const element = document.createElement("span");
  element.className = "note";
  element.textContent = parts.join(" · ");
  answer.append(element);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    running.abort();
    return;
  }
  const text = $("prompt").value.trim();
  if (!text) return;
  $("prompt").value = "";
  send(text);
});

$("send").addEventListener("click", (event) => {
  if (running) { // the empty text field would forbid submitting
    event.preventDefault();
    running.abort();
  }
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) $("form").requestSubmit();
  }
});

$("clear").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  $("messages").replaceChildren();
});

// ---- the engine -------------------------------------------------------------------------------------------------

function megabytes(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`;
}

function describe(report) {
  model = report.model;
  $("model").textContent =
    `${model.name} · ${model.layers} layers × ${model.experts} experts, ${model.experts_per_token} a token · ` +
    `${model.quantization} · ${report.sequences} × ${model.context} tokens · ${model.threads} threads, ${model.isa}`;
  map.resize(model.layers, model.experts);
}

function show(report) {
  if (report.model) {
    describe(report);
    return;
  }
  $("rate").textContent = report.rate.toFixed(report.rate < 10 ? 1 : 0);
  $("running").textContent = report.running;
  $("waiting").textContent = report.waiting;
  $("step").textContent = `${report.step_ms.toFixed(0)} ms`;
  graph.add(report.rate);
  const { rss_bytes: used, budget_bytes: budget } = report.memory;
  $("memory").value = used / budget;
  $("memory-text").textContent = `${megabytes(used)} of ${megabytes(budget)}`;
  const [held, blocks] = report.cache;
  $("cache").value = held / blocks;
  $("cache-text").textContent = `${held} of ${blocks} blocks`;
  const { hits, misses, experts_touched: touched, experts_total: total } = report.routing;
  const ratio = hits + misses ? (100 * hits) / (hits + misses) : 100;
  $("experts-text").textContent = `${touched} of ${total} used, ${ratio.toFixed(1)} % found in memory`;
  if (report.experts) map.add(report.experts);
}

function state(text, bad) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

async function live() {
  for (;;) {
    try {
      const response = await ask("live", {});
      state("connected", false);
      for await (const report of events(response.body)) show(report);
    } catch (error) {
      state(error.message, true);
    }
    const health = await fetch("health").then((answer) => answer.json()).catch(() => null);
    state(health ? `engine ${health.status}` : "the server cannot be reached", !health || health.status !== "ok");
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

live();
