// The chats that this browser keeps: {id, changed, system, messages: [{role, content, thought, note, problem}]}.
import { browser, keep } from "./storage.js";

const TITLE = 60;
const START = "chat:";

export function newChat() {
  return { id: newId(), system: "", messages: [] };
}

function newId() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
}

export function title(chat) {
  const text = chat.messages.find((message) => message.role === "user")?.content.trim().split("\n")[0] ?? "";
  return text.length > TITLE ? `${text.slice(0, TITLE).trimEnd()}…` : text;
}

// Whether it could be kept. A chat that was deleted while its answer came stays deleted; one that another tab has gone on
// with meanwhile is kept beside that.
export function save(chat) {
  if (chat.deleted) return true;
  const kept = load(chat.id);
  if (kept && kept.changed !== chat.changed) chat.id = newId();
  if (!chat.messages.length) {
    browser.remove(START + chat.id);
    return true;
  }
  const { system, messages } = chat;
  const changed = Date.now();
  const done = keep(browser, START + chat.id, JSON.stringify({ changed, system, messages }));
  if (done) chat.changed = changed;
  return done;
}

export function load(id) {
  return parsed(id, browser.get(START + id));
}

export function remove(chat) {
  chat.deleted = true;
  browser.remove(START + chat.id);
}

export function all() {
  const found = browser.names(START).map((name) => load(name.slice(START.length)));
  return found.filter(Boolean).sort((one, other) => other.changed - one.changed);
}

// Whatever is in the storage, only texts come out of it.
function parsed(id, text) {
  try {
    const { changed, system, messages } = JSON.parse(text);
    const kept = messages.filter(({ role, content }) => ["user", "assistant"].includes(role) && typeof content === "string");
    return { id, changed: Number(changed) || 0, system: String(system ?? ""), messages: kept.map(message) };
  } catch {
    return null;
  }
}

function message(given) {
  const result = { role: given.role, content: given.content };
  for (const name of ["thought", "note", "problem"]) if (typeof given[name] === "string") result[name] = given[name];
  return result;
}
