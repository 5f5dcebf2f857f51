// The chat that is shown: sending, stopping, trying again, and going to another chat at any moment.
import { answer, summary } from "./answer.js";
import { follow } from "./follow.js";
import { MessageView } from "./message.js";
import * as saved from "./saved.js";
import { settings, showSystem } from "./settings.js";
import { keep, tab } from "./storage.js";

const $ = (id) => document.getElementById(id);
const STOPPED = "stopped";
const toEnd = follow($("messages"), $("log"));
let chat = saved.newChat();
let views = [];
let running = null; // the answer under way: {chat, question, reply, replaced, controller} and what shows it

export function start() {
  $("prompt").value ||= tab.get("draft") ?? "";
  const last = tab.get("chat");
  const found = last && saved.load(last);
  if (found) show(found);
  else refresh();
  addEventListener("visibilitychange", keepAll); // on a phone a page may end without another word
  addEventListener("pagehide", keepAll);
}

function keepAll() {
  if (running) saved.save(running.chat);
  keep(tab, "chat", chat.id);
  keep(tab, "draft", $("prompt").value);
}

export function current() {
  return chat;
}

export function busy() {
  return running !== null;
}

// Show another chat. An answer that is under way ends, and belongs to the chat that asked for it.
export function show(other) {
  stop();
  running = null;
  chat = other;
  const unsent = unanswered(chat);
  $("log").replaceChildren();
  views = chat.messages.map((message) => new MessageView($("log"), message));
  if (chat.messages.length) showSystem(chat.system);
  giveBack(unsent);
  refresh();
  toEnd();
}

export function stop() {
  running?.controller.abort();
}

// A question at the end to which no answer has come is taken off; its text.
function unanswered(given) {
  const { messages } = given;
  const last = messages.at(-1);
  if (last?.role === "assistant" && !last.content && !last.thought && !last.note) messages.pop();
  return messages.at(-1)?.role === "user" ? messages.pop().content : "";
}

function giveBack(text) {
  $("prompt").value = [text, $("prompt").value].filter(Boolean).join("\n\n");
}

// replaced: the question and the answer in whose place these come.
export async function send(text, replaced = []) {
  stop();
  const { system, ...options } = settings();
  const question = { role: "user", content: text };
  const reply = { role: "assistant", content: "" };
  const mine = { chat, question, reply, replaced, controller: new AbortController() };
  running = mine;
  chat.system = system;
  chat.messages.push(question, reply);
  $("problem").textContent = "";
  mine.questionView = new MessageView($("log"), question);
  mine.view = new MessageView($("log"), reply);
  views.push(mine.questionView, mine.view);
  mine.view.setBusy(true);
  refresh();
  toEnd();
  const begun = performance.now();
  let problem = null;
  try {
    for await (const found of answer(plain(chat), options, mine.controller.signal)) {
      [reply.content, reply.thought] = [found.content, found.thought];
      reply.note = summary(found, (performance.now() - begun) / 1000);
      mine.view.update();
    }
  } catch (error) {
    problem = error.name === "AbortError" ? STOPPED : error.message;
  }
  end(mine, problem);
}

// What the model is given: no empty answer at the end, no notes.
function plain({ system, messages }) {
  const said = messages.slice(0, -1).map(({ role, content }) => ({ role, content }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

function end(mine, problem) {
  if (running === mine) running = null;
  if (problem && !mine.reply.content && !mine.reply.thought) refuse(mine, problem);
  else if (problem) mine.reply[problem === STOPPED ? "note" : "problem"] = problem;
  mine.view.setBusy(false);
  if (!saved.save(mine.chat)) $("problem").textContent = "This browser has no room left: the chat is not kept.";
  refresh();
}

// Nothing came: the text goes back to where it was typed, or what it replaced comes back. Of a chat that was left, a
// question is kept as its last message.
function refuse({ chat: asked, question, reply, replaced, questionView, view }, problem) {
  const { messages } = asked;
  messages.splice(messages.indexOf(reply), 1);
  if (asked === chat || replaced.length) messages.splice(messages.indexOf(question), 1);
  messages.push(...replaced);
  if (asked !== chat) return;
  questionView.remove();
  view.remove();
  views = views.filter((each) => each !== view && each !== questionView);
  views.push(...replaced.map((message) => new MessageView($("log"), message)));
  if (!replaced.length) giveBack(question.content);
  $("problem").textContent = problem === STOPPED ? "" : `Not sent: ${problem}`;
}

export function again() {
  const last = chat.messages.findLastIndex(({ role }) => role === "user");
  if (running || last < 0) return;
  const replaced = chat.messages.splice(last);
  views.splice(last).forEach((view) => view.remove());
  send(replaced[0].content, replaced);
}

function refresh() {
  const empty = !chat.messages.length;
  $("welcome").hidden = !empty;
  $("title").textContent = saved.title(chat);
  $("send").textContent = running ? "Stop" : "Send";
  $("again").hidden = empty || running !== null;
  $("log").setAttribute("aria-busy", String(running !== null));
}
