// The panel beside the chat: what the model takes, and how fast it is now.

import { element } from "./markdown.js";

const HISTORY = 60; // samples of a line
const NAMES = {
  "pinned weights": "Pinned weights",
  "kv cache": "Keys and values",
  experts: "Expert cache",
  "stream ring": "Stream buffers",
  process: "Program and libraries",
  workspace: "Working memory",
  logits: "Logits",
  reserved: "Kept for requests",
  "python heap": "Reserve of the program",
};

const $ = (id) => document.getElementById(id);

/** Bytes to three digits in the largest unit that keeps them above 1. */
export function size(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 1023.5 && unit < 4) {
    value /= 1024;
    unit += 1;
  }
  return `${digits(value, unit === 0)}\u00a0${["bytes", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** A rate or size for people: three digits. */
export function digits(value, whole = false) {
  if (value === 0) return "0";
  return value.toFixed(whole || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

const count = (n) =>
  n >= 1e9 ? `${digits(n / 1e9)}\u00a0billion` : n >= 1e6 ? `${digits(n / 1e6)}\u00a0million` : n.toLocaleString("en");

const histories = { tokens: [], disk: [] };

/** Shows what `/status` said. */
export function showStatus(status) {
  showSpeed(status);
  showMemory(status.memory);
  showWeights(status);
  $("panel-problem").hidden = true;
}

/** Shows why there is nothing to show. */
export function showNoStatus(text) {
  $("panel-problem").textContent = text;
  $("panel-problem").hidden = false;
}

function showSpeed(status) {
  const { active, waiting, parallel } = status.requests;
  const reading = !status.tokens_per_s && status.prompt_tokens_per_s > 0;
  const tokens = reading ? status.prompt_tokens_per_s : status.tokens_per_s;
  const disk = status.read_bytes_per_s === null ? null : status.read_bytes_per_s / 2 ** 20;
  $("tokens-unit").textContent = reading ? "tokens/s of prompt" : "tokens/s";
  $("tokens-rate").textContent = active && tokens !== null ? digits(tokens) : "–";
  $("disk-rate").textContent = active && disk !== null ? digits(disk) : "–";
  drawLine($("tokens-line"), histories.tokens, status.tokens_per_s);
  drawLine($("disk-line"), histories.disk, disk);
  const room = `${active} of ${parallel} places busy`;
  $("requests").textContent = active ? room + (waiting ? `, ${waiting} waiting` : "") : "Nothing runs.";
  const speed = active && tokens !== null ? `${digits(tokens)} tokens/s · ` : "";
  const limit = status.memory.budget_bytes;
  $("brief").textContent = speed + size(status.memory.used_bytes) + (limit ? ` of ${size(limit)}` : "");
}

function drawLine(svg, values, value) {
  values.push(value ?? 0);
  if (values.length > HISTORY) values.shift();
  const top = Math.max(...values) * 1.15 || 1;
  const first = HISTORY - values.length;
  const points = values.map((v, i) => {
    const x = ((first + i) / (HISTORY - 1)) * 120;
    return `${x.toFixed(1)} ${(31 - (v / top) * 29).toFixed(1)}`;
  });
  const line = `M${points.join("L")}`;
  svg.querySelector(".over").setAttribute("d", line);
  svg.querySelector(".under").setAttribute("d", `${line}L120 32L${((first / (HISTORY - 1)) * 120).toFixed(1)} 32Z`);
}

function showMemory({ budget_bytes: limit, used_bytes: used, by_tag: tags, resident_bytes: resident }) {
  $("memory-used").textContent = size(used);
  $("memory-limit").textContent = limit ? `of ${size(limit)} budget` : "no limit";
  const parts = Object.entries(tags)
    .sort(([, a], [, b]) => b - a)
    .map(([tag, bytes]) => ({ name: NAMES[tag] ?? tag, kind: tag.split(" ")[0].toLowerCase(), bytes }));
  if (limit) parts.push({ name: "Free", kind: "free", bytes: limit - used });
  const total = limit || used;
  showStack($("memory-bar"), $("memory-parts"), parts, total);
  if (resident !== null) {
    $("memory-parts").append(...row("Resident now", size(resident), "resident"));
  }
}

function showWeights({ weight_bytes: all, pinned_bytes: pinned, streamed_bytes: streamed }) {
  const beside = Math.max(0, all - pinned - streamed); // rows and experts that are read when they are wanted
  const whole = !streamed && beside < all / 100;
  $("weights-size").textContent = size(all);
  $("weights-note").textContent = whole ? "all of it in memory" : `${Math.round((100 * pinned) / all)} % in memory`;
  const parts = [{ name: "Pinned in memory", kind: "pinned", bytes: pinned }];
  if (streamed) parts.push({ name: "Streamed in each pass", kind: "streamed", bytes: streamed });
  if (!whole && beside) parts.push({ name: "Read when wanted", kind: "beside", bytes: beside });
  showStack($("weights-bar"), $("weights-parts"), parts, all);
}

function showStack(bar, list, parts, total) {
  bar.setAttribute("aria-label", parts.map((p) => `${p.name}: ${size(p.bytes)}`).join(", "));
  while (bar.children.length > parts.length) bar.lastChild.remove();
  parts.forEach((part, i) => {
    const piece = bar.children[i] ?? bar.appendChild(element("span"));
    piece.className = `of-${part.kind}`;
    piece.style.width = `${(100 * part.bytes) / total}%`;
    piece.title = `${part.name}: ${size(part.bytes)}`;
  });
  list.replaceChildren(...parts.flatMap((part) => row(part.name, size(part.bytes), part.kind)));
}

const row = (name, value, kind) => [
  element("dt", { className: `of-${kind}`, textContent: name }),
  element("dd", { textContent: value }),
];

/** Shows what does not change, and what of the context the conversation fills. */
export function showModel(status, contextTokens) {
  const filled = contextTokens === null ? "" : `${contextTokens.toLocaleString("en")} of `;
  const facts = {
    Name: status.model,
    Architecture: status.architecture,
    Parameters: count(status.parameters),
    Quantization: status.quantization.slice(0, 3).join(", ").toUpperCase(),
    Context: `${filled}${status.context.toLocaleString("en")} tokens`,
  };
  $("model-facts").replaceChildren(
    ...Object.entries(facts).flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: value }),
    ]),
  );
  $("model-name").textContent = status.model;
  const limit = status.memory.budget_bytes;
  const where = limit ? `, inside ${size(limit)} of memory` : "";
  $("welcome-facts").textContent =
    `${status.model} answers on this machine${where}: ${count(status.parameters)} parameters, ` +
    `${size(status.weight_bytes)} of weights.`;
}
