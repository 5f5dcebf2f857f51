// What the browser keeps. Where it keeps nothing (blocked by the user), it is kept until the page is closed.
const base = new URL(".", document.baseURI).pathname; // several servers behind one proxy share an origin
const prefix = `colibri:${base}:`;

function usable(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}

class Area {
  constructor(name) {
    this.storage = usable(name);
    this.memory = new Map();
  }

  get(name) {
    return this.storage ? this.storage.getItem(prefix + name) : this.memory.get(name) ?? null;
  }

  // Throws where the browser's room is used up.
  set(name, value) {
    if (this.storage) this.storage.setItem(prefix + name, value);
    else this.memory.set(name, value);
  }

  remove(name) {
    if (this.storage) this.storage.removeItem(prefix + name);
    else this.memory.delete(name);
  }

  names(start) {
    const all = this.storage ? Object.keys(this.storage).filter((name) => name.startsWith(prefix)) : [...this.memory.keys()];
    return all.map((name) => (this.storage ? name.slice(prefix.length) : name)).filter((name) => name.startsWith(start));
  }
}

export const tab = new Area("sessionStorage");
export const browser = new Area("localStorage");

export function keep(area, name, value) {
  try {
    area.set(name, value);
    return true;
  } catch {
    return false; // its room is used up
  }
}
