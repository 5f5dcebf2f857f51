// The page: a chat over the same API that every client uses, and what the engine says of itself.
import { again, busy, send, show, start, stop } from "./chat.js";
import { startEngine } from "./engine.js";
import { startLibrary } from "./library.js";
import { newChat } from "./saved.js";
import { startSettings } from "./settings.js";

const $ = (id) => document.getElementById(id);

function submit() {
  const text = $("prompt").value.trim();
  if (!text || busy()) return;
  $("prompt").value = "";
  send(text);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (busy()) stop();
  else submit();
});

const touched = matchMedia("(pointer: coarse)"); // keyboards on screens have no Shift with Enter: there it begins a line

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touched.matches) {
    event.preventDefault();
    submit();
  }
});

$("clear").addEventListener("click", () => {
  show(newChat());
  $("prompt").focus();
});

$("again").addEventListener("click", again);

for (const example of document.querySelectorAll("#welcome button")) {
  example.addEventListener("click", () => send(example.textContent));
}

for (const view of document.querySelectorAll("nav button")) { // on a phone one of the two is shown
  view.addEventListener("click", () => {
    document.body.dataset.view = view.value;
    for (const other of document.querySelectorAll("nav button")) other.setAttribute("aria-pressed", String(other === view));
  });
}

startSettings();
start();
startLibrary();
startEngine();
