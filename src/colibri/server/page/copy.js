// Copying to the clipboard, also where the browser has none for pages without TLS.
const SHOWN_MS = 1500;

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "outside";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

export function copyButton(read) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = (await copy(read())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  return button;
}
