// The dialog with the chats that this browser keeps.
import { current, show } from "./chat.js";
import * as saved from "./saved.js";

const dialog = document.getElementById("chats");
const list = document.getElementById("chat-list");

export function startLibrary() {
  document.getElementById("open-chats").addEventListener("click", () => {
    fill();
    dialog.showModal();
  });
  document.getElementById("close-chats").addEventListener("click", () => dialog.close());
  document.getElementById("delete-chats").addEventListener("click", () => {
    if (!confirm("Delete all chats that this browser keeps?")) return;
    saved.all().forEach(drop);
    dialog.close();
  });
}

function fill() {
  const chats = saved.all();
  list.replaceChildren(...chats.map(row));
  document.getElementById("no-chats").hidden = chats.length > 0;
  document.getElementById("delete-chats").hidden = !chats.length;
}

function row(chat) {
  const item = document.createElement("li");
  const open = button(saved.title(chat), "open", () => {
    if (chat.id !== current().id) show(chat);
    dialog.close();
  });
  if (chat.id === current().id) open.setAttribute("aria-current", "true");
  const time = document.createElement("time");
  time.textContent = new Date(chat.changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  open.append(time);
  item.append(open, button("Delete", "small", () => {
    if (!confirm(`Delete the chat “${saved.title(chat)}”?`)) return;
    drop(chat);
    fill();
  }));
  return item;
}

// The chat that is shown goes, too, when it is deleted.
function drop(chat) {
  const shown = current();
  saved.remove(chat);
  if (chat.id !== shown.id) return;
  saved.remove(shown);
  show(saved.newChat());
}

function button(text, name, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = name;
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}
