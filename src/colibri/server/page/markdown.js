// Markdown to elements. markdown-it parses it to tokens; elements are made of those that are known here, and text stays
// text: no HTML is ever parsed, no picture is fetched.
import MarkdownIt from "./markdown-it.min.js";
import { copyButton } from "./copy.js";

const DEEPEST = 40; // what is deeper in lists and quotes the parser drops
const parser = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

const TAGS = new Set("p h1 h2 h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td em strong s".split(" "));
const SCHEMES = ["http:", "https:", "mailto:"];
const ALIGNED = /^text-align:(left|center|right)$/;

// Shows a text that grows: blocks that are as they were keep their elements, and what is selected in them.
export class Markdown {
  constructor(element) {
    this.element = element;
    this.keys = [];
  }

  show(text) {
    let blocks;
    try {
      blocks = blocksOf(text);
    } catch {
      this.element.textContent = text; // what cannot be parsed is shown all the same
      this.keys = [];
      return;
    }
    let same = 0;
    while (same < blocks.length && blocks[same].key === this.keys[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const block of blocks.slice(same)) build(block.tokens, this.element);
    this.keys = blocks.map((block) => block.key);
  }
}

// The tokens of each block at the top, and the text that decides how it looks.
function blocksOf(text) {
  const env = {};
  const lines = text.split(/\r\n?|\n/);
  const blocks = [];
  let depth = 0;
  for (const token of parser.parse(text, env)) {
    if (!depth) blocks.push({ key: lines.slice(...token.map).join("\n"), tokens: [] });
    blocks.at(-1).tokens.push(token);
    depth += token.nesting;
    if (depth >= DEEPEST) throw new RangeError("nested too deeply");
  }
  const known = Object.keys(env.references ?? {}).length; // links that are defined further down
  for (const block of blocks) block.key = `${block.tokens[0].type} ${known} ${block.key}`;
  return blocks;
}

function build(tokens, parent) {
  const open = [parent];
  for (const token of tokens) {
    const inner = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) open.push(token.hidden ? inner : opened(token, inner));
    else (LEAVES[token.type] ?? plain)(token, inner);
  }
}

function opened(token, parent) {
  if (token.type === "link_open") return link(token.attrGet("href"), parent);
  const element = add(parent, TAGS.has(token.tag) ? token.tag : "span");
  const start = Number(token.attrGet("start"));
  if (token.tag === "ol" && start > 1) element.start = start;
  const aligned = ALIGNED.exec(token.attrGet("style") ?? "");
  if (aligned) element.style.textAlign = aligned[1];
  if (token.tag !== "table") return element;
  const frame = add(parent, "div"); // which scrolls
  frame.className = "wide";
  frame.append(element);
  return element;
}

function link(address, parent) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!url || !SCHEMES.includes(url.protocol)) return add(parent, "span");
  const element = add(parent, "a");
  element.href = url.href;
  element.title = url.href;
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
  return element;
}

const LEAVES = {
  inline: (token, parent) => build(token.children, parent),
  softbreak: (token, parent) => add(parent, "br"),
  hardbreak: (token, parent) => add(parent, "br"),
  hr: (token, parent) => add(parent, "hr"),
  code_inline: (token, parent) => add(parent, "code", token.content),
  code_block: (token, parent) => code(token.content, "", parent),
  fence: (token, parent) => code(token.content, token.info.trim().split(/\s+/)[0], parent),
  image: (token, parent) => {
    link(token.attrGet("src"), parent).textContent = `[picture: ${token.content || token.attrGet("src")}]`;
  },
};

function plain(token, parent) {
  parent.append(token.content);
}

function code(text, language, parent) {
  const frame = add(parent, "div");
  frame.className = "code";
  const head = add(frame, "div");
  head.className = "code-head";
  add(head, "span", language);
  head.append(copyButton(() => text.replace(/\n$/, "")));
  add(add(frame, "pre"), "code", text);
}

function add(parent, tag, text = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}
