// What is sent along with the messages; kept by the browser.
import { browser, keep } from "./storage.js";

const $ = (id) => document.getElementById(id);
const FIELDS = ["system", "temperature", "tokens"];

export function settings() {
  return { system: $("system").value.trim(), temperature: number("temperature"), tokens: Math.round(number("tokens")) };
}

export function showSystem(text) {
  $("system").value = text;
  describe();
}

// What is in the field, or what was there at first when that is no number that the field allows.
function number(name) {
  const field = $(name);
  const { badInput, rangeUnderflow, rangeOverflow } = field.validity;
  if (field.value === "" || badInput || rangeUnderflow || rangeOverflow) field.value = field.defaultValue;
  return Number(field.value);
}

function describe() {
  const { system, temperature, tokens } = settings();
  const parts = [`temperature ${temperature}`, `at most ${tokens} tokens`, ...(system ? ["system prompt"] : [])];
  $("settings-text").textContent = parts.join(" · ");
}

export function startSettings() {
  for (const name of FIELDS) {
    $(name).value = browser.get(name) ?? $(name).value;
    $(name).addEventListener("change", () => {
      describe();
      keep(browser, name, $(name).value);
    });
  }
  describe();
}
