// Requests to the server that this page came from.
import { askForKey, key } from "./keys.js";

export class KeyNeeded extends Error {}

export async function ask(path, options = {}) {
  for (;;) {
    const used = key();
    const headers = { "Content-Type": "application/json", ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    const response = await fetch(path, { ...options, headers }).catch((error) => {
      throw error instanceof TypeError ? new Error("The server cannot be reached.") : error;
    });
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await problem(response));
    if (key() === used && !(await askForKey())) throw new KeyNeeded("The server asks for an API key.");
    options.signal?.throwIfAborted();
  }
}

async function problem(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The server answered with status ${response.status}.`;
}
