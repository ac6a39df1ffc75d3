// Markdown to DOM nodes. Text becomes text nodes and attributes, never markup: nothing in it can become an element
// that is not made here. Images are shown as links, so that no text makes the browser ask another server.

const DEPTH = 12; // of lists in quotes in lists; deeper ones are text

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>\s?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const COLUMNS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

/** Shows `text` in `into`, and keeps the nodes of blocks that did not change: a stream only redraws its end. */
export function render(into, text) {
  const found = blocks(text.replace(/\r\n?/g, "\n").split("\n"));
  found.forEach((block, i) => {
    const old = into.childNodes[i];
    if (old && old.source === block.source) return;
    const node = block.make(0);
    node.source = block.source;
    if (old) old.replaceWith(node);
    else into.append(node);
  });
  while (into.childNodes.length > found.length) into.lastChild.remove();
}

/** Cuts lines into blocks: what each was made from, and how to make its node. */
function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [end, make] = blockAt(lines, at);
    found.push({ source: lines.slice(at, end).join("\n"), make });
    at = end;
  }
  return found;
}

/** The block that begins at line `at`: where it ends, and how to make its node at a depth. */
function blockAt(lines, at) {
  const line = lines[at];
  let match;
  if ((match = FENCE.exec(line))) return fence(lines, at, match);
  if ((match = HEADING.exec(line))) {
    const [, marks, title = ""] = match;
    return [at + 1, () => element(`h${marks.length}`, {}, ...inline(title))];
  }
  if (RULE.test(line)) return [at + 1, () => element("hr")];
  if (QUOTE.test(line)) {
    const end = while_(lines, at, (l) => QUOTE.test(l));
    const inner = lines.slice(at, end).map((l) => l.replace(QUOTE, ""));
    return [end, (depth) => element("blockquote", {}, ...nested(inner, depth))];
  }
  if (ITEM.test(line)) return list(lines, at);
  if (line.includes("|") && at + 1 < lines.length && isTable(line, lines[at + 1])) return table(lines, at);
  const end = while_(lines, at + 1, (l) => l.trim() && !begins(l));
  return [end, () => element("p", {}, ...inline(lines.slice(at, end).join("\n").trim()))];
}

const begins = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function while_(lines, at, holds) {
  while (at < lines.length && holds(lines[at])) at += 1;
  return at;
}

function nested(lines, depth) {
  if (depth >= DEPTH) return [lines.join("\n")];
  return blocks(lines).map((block) => block.make(depth + 1));
}

function fence(lines, at, [, marks, info]) {
  const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  const end = while_(lines, at + 1, (l) => !closing.test(l));
  const text = lines.slice(at + 1, end).join("\n");
  return [Math.min(end + 1, lines.length), () => codeBlock(text, info.trim().split(/\s/)[0])];
}

function codeBlock(text, language) {
  const copy = element("button", { type: "button", className: "copy", textContent: "Copy" });
  copy.addEventListener("click", () => copyText(text, copy));
  return element(
    "figure",
    { className: "code" },
    element("figcaption", {}, element("span", { textContent: language || "text" }), copy),
    element("pre", { tabIndex: 0 }, element("code", { textContent: text })),
  );
}

function list(lines, at) {
  const [, margin, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || match[1].length > margin.length + 1 || /\d/.test(match[2]) !== ordered) break;
    if (RULE.test(lines[end])) break;
    const start = end;
    end = while_(lines, end + 1, (l) => belongs(l, margin.length));
    let last = end;
    while (!lines[last - 1].trim()) last -= 1; // blank lines at the end of an item are between items
    const item = lines.slice(start, last);
    items.push([item[0].slice(match[0].length), ...item.slice(1).map((l) => dedent(l, match[0].length))]);
    loose ||= item.some((l) => !l.trim());
  }
  const start = ordered ? parseInt(mark, 10) : 1;
  const make = (depth) => {
    const node = element(ordered ? "ol" : "ul", start === 1 ? {} : { start });
    node.append(...items.map((item) => element("li", {}, ...tight(nested(item, depth), loose))));
    return node;
  };
  return [end, make];
}

/** Whether a line goes on with an item whose mark stands after `margin` blanks. */
function belongs(line, margin) {
  if (!line.trim()) return true;
  const indent = line.length - line.trimStart().length;
  if (indent >= margin + 2) return true;
  return !begins(line) && indent > margin;
}

const dedent = (line, width) => line.slice(Math.min(width, line.length - line.trimStart().length));

/** Items without blank lines between them hold their text without a paragraph around it. */
function tight(nodes, loose) {
  if (loose) return nodes;
  return nodes.flatMap((node) => (node.nodeName === "P" ? [...node.childNodes] : [node]));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/);

const isTable = (head, columns) =>
  COLUMNS.test(columns) && columns.includes("-") && cells(head).length === cells(columns).length;

function table(lines, at) {
  const end = while_(lines, at + 2, (l) => l.includes("|") && l.trim());
  const aligned = cells(lines[at + 1]).map((c) => (/:\s*$/.test(c) ? (/^\s*:/.test(c) ? "center" : "right") : "left"));
  const row = (line, name) => {
    const texts = cells(line);
    const made = aligned.map((side, i) => {
      const text = (texts[i] ?? "").trim().replaceAll("\\|", "|");
      return element(name, { className: side }, ...inline(text));
    });
    return element("tr", {}, ...made);
  };
  const make = () => {
    const head = element("thead", {}, row(lines[at], "th"));
    const body = element("tbody", {}, ...lines.slice(at + 2, end).map((l) => row(l, "td")));
    return element("div", { className: "table", tabIndex: 0 }, element("table", {}, head, body));
  };
  return [end, make];
}

// What a character may begin, within a line: a pattern that must match there, and the nodes that it makes.
const INLINE = [
  [/\\([!-/:-@[-`{-~])/y, (m) => [m[1]]],
  [/\n/y, () => [element("br")]],
  [/(`+)(?!`)([^]*?[^`])\1(?!`)/y, (m) => [element("code", { textContent: m[2].replace(/^ (.*) $/s, "$1") })]],
  [/(\*\*)(?=\S)([^]*?\S)\*\*(?!\*)/y, (m, depth) => [element("strong", {}, ...inline(m[2], depth))]],
  [/(?<!\w)(__)(?=\S)([^]*?\S)__(?!\w)/y, (m, depth) => [element("strong", {}, ...inline(m[2], depth))]],
  [/\*(?=[^\s*])([^]*?[^\s*]|[^]*?\*\*)\*(?!\*)/y, (m, depth) => [element("em", {}, ...inline(m[1], depth))]],
  [/(?<!\w)_(?=[^\s_])([^]*?[^\s_])_(?!\w)/y, (m, depth) => [element("em", {}, ...inline(m[1], depth))]],
  [/~~(?=\S)([^]*?\S)~~/y, (m, depth) => [element("s", {}, ...inline(m[1], depth))]],
  [
    /!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/y,
    (m, depth) => link(m[2], m[0], () => inline(m[1] || m[2], depth)),
  ],
  [/<((?:https?:\/\/|mailto:)[^\s<>]+)>/y, (m) => link(m[1], m[0], () => [m[1]])],
  [/(?<!\w)https?:\/\/[^\s<>"`]*[^\s<>"`.,;:!?)\]}*_~']/y, (m) => link(m[0], m[0], () => [m[0]])],
];

function inline(text, depth = 0) {
  if (depth > DEPTH) return [text];
  const nodes = [];
  const special = /[\\\n`*_~![<]|https?:/g;
  let plain = 0; // where text begins that is not in `nodes` yet
  let match;
  while ((match = special.exec(text))) {
    for (const [pattern, make] of INLINE) {
      pattern.lastIndex = match.index;
      const found = pattern.exec(text);
      if (!found) continue;
      const end = pattern.lastIndex; // before `make`, which may use the same pattern
      nodes.push(text.slice(plain, match.index), ...make(found, depth + 1));
      plain = special.lastIndex = end;
      break;
    }
  }
  nodes.push(text.slice(plain));
  return nodes.filter((node) => node !== "");
}

/** A link if it leads to a web page or a mail address; anything else stays the text that it is. */
function link(address, source, label) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return [source];
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return [source];
  return [element("a", { href: url.href, rel: "noopener noreferrer", target: "_blank" }, ...label())];
}

/** Copies, and says so on the button for a moment. */
export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No secure context, or no permission: the old way works from a click.
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1500);
}
