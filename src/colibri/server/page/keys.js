// The API key: asked for when the server wants one, kept until the tab is closed.
import { keep, tab } from "./storage.js";

let asking = null;
let waiting = []; // for another key

export function key() {
  return tab.get("key");
}

// Resolves once another key has been entered.
export function keyEntered() {
  return new Promise((resolve) => waiting.push(resolve));
}

// Whether a key was entered; the dialog can be left.
export function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const field = document.getElementById("key");
    document.getElementById("key-text").textContent = key()
      ? "The server refused this API key."
      : "This server asks for an API key.";
    field.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      const entered = dialog.returnValue === "use";
      if (entered) use(field.value.trim());
      field.value = "";
      resolve(entered);
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

function use(value) {
  keep(tab, "key", value);
  for (const resolve of waiting.splice(0)) resolve();
}
