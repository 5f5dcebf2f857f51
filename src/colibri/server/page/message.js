// One message as it is shown: a text of the user, or an answer with its thoughts, its note and what can be done with it.
import { copyButton } from "./copy.js";
import { Markdown } from "./markdown.js";

export class MessageView {
  constructor(parent, message) {
    this.message = message;
    this.element = element(parent, "article", `message ${message.role}`);
    if (message.role === "assistant") this.addThought();
    this.body = element(this.element, "div", "body");
    this.markdown = message.role === "assistant" ? new Markdown(this.body) : null;
    this.foot = element(this.element, "footer", "foot");
    this.note = element(this.foot, "span", "note");
    this.foot.append(copyButton(() => message.content));
    this.draw();
  }

  addThought() {
    this.thought = element(this.element, "details", "thought");
    element(this.thought, "summary", "").textContent = "Thoughts";
    this.thoughtText = element(this.thought, "div", "thought-text");
  }

  // At most once a frame, however many tokens come.
  update() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const { content, thought, note, problem } = this.message;
    if (this.markdown) this.markdown.show(content);
    else this.body.textContent = content;
    if (this.thought) {
      this.thought.hidden = !thought;
      this.thoughtText.textContent = thought ?? "";
      this.unfold(content ? "answer" : thought ? "thought" : "");
    }
    this.note.textContent = [problem, note].filter(Boolean).join(" · ");
    this.note.classList.toggle("bad", Boolean(problem));
  }

  // Thoughts are open while nothing else has come; after that it is the reader who opens them.
  unfold(stage) {
    if (this.busy && stage !== this.stage) this.thought.open = stage === "thought";
    this.stage = stage;
  }

  setBusy(busy) {
    this.draw();
    this.busy = busy;
    this.element.classList.toggle("busy", busy);
  }

  remove() {
    cancelAnimationFrame(this.frame);
    this.element.remove();
  }
}

function element(parent, tag, name) {
  const made = document.createElement(tag);
  made.className = name;
  parent.append(made);
  return made;
}
