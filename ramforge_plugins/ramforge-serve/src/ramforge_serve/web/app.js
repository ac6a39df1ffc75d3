// The page: what buttons and keys do. Chat is in conversation.js and messages.js, the server in server.js.

import { conversation, request, saveConversation, saveSettings, settings } from "./conversation.js";
import { render } from "./markdown.js";
import { drawMessages, Waiting } from "./messages.js";
import { digits, showModel, showNoStatus, showStatus } from "./panel.js";
import { chat, ServerError, setKey, status } from "./server.js";

const $ = (id) => document.getElementById(id);
const input = $("input");
const scroller = $("scroller");
const wide = matchMedia("(min-width: 1080px)");

/** The answer that is being made: `{controller, waiting}`; null if there is none. */
let running = null;
/** Whether the composer holds the last message of the user, to be replaced. */
let editing = false;

// -- the conversation ------------------------------------------------------------------------------------------------

function draw() {
  const { messages } = conversation;
  $("welcome").hidden = messages.length > 0;
  drawMessages($("messages"), messages, { edit: beginEdit, again: answerAgain });
  toEnd();
}

function send() {
  const text = input.value.trim();
  if (!text || running) return;
  if (editing) dropFromLastQuestion();
  endEdit();
  conversation.messages.push({ role: "user", content: text });
  input.value = "";
  fitInput();
  answer();
}

function dropFromLastQuestion() {
  conversation.messages.length = conversation.messages.findLastIndex((m) => m.role === "user");
}

function answerAgain() {
  if (running) return;
  if (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
  if (conversation.messages.length) answer();
}

/** Streams an answer to the messages so far. */
async function answer() {
  const { messages } = conversation; // not the same any more once a new chat was begun
  const body = request(messages);
  const message = { role: "assistant", content: "", note: "" };
  messages.push(message);
  saveConversation();
  endProblem();
  const pressed = $("messages").contains(document.activeElement); // a button that is drawn anew
  draw();
  const node = $("messages").lastElementChild;
  node.setAttribute("aria-busy", "true");
  running = { controller: new AbortController(), waiting: new Waiting(node) };
  setBusy(true);
  if (pressed) $("stop").focus();
  const clock = { began: performance.now(), first: null, last: null, pieces: 0 };
  let usage = null;
  let finish = null;
  let problem = null;
  let drawn = 0;
  poll();
  try {
    for await (const event of chat(body, running.controller.signal)) {
      if (event.prompt) running.waiting.reads(event.prompt);
      if (event.finish) finish = event.finish;
      if (event.usage) usage = event.usage;
      if (!event.text) continue;
      running.waiting.end();
      clock.last = performance.now();
      clock.first ??= clock.last;
      clock.pieces += 1;
      message.content += event.text;
      drawn ||= requestAnimationFrame(() => {
        drawn = 0;
        const follow = atEnd();
        render(node.querySelector(".body"), message.content);
        if (follow) toEnd();
      });
    }
  } catch (error) {
    if (error.name !== "AbortError") problem = error;
    else finish = "stopped";
  }
  cancelAnimationFrame(drawn);
  running.waiting.end();
  running = null;
  setBusy(false);
  if (conversation.messages !== messages) return;
  const follow = atEnd();
  const top = scroller.scrollTop;
  render(node.querySelector(".body"), message.content);
  node.removeAttribute("aria-busy"); // now it is read out
  message.note = note(clock, usage, problem ? "broke off" : finish);
  if (!message.content && (problem || finish === "stopped")) messages.pop();
  conversation.tokens = usage?.total_tokens ?? conversation.tokens;
  saveConversation();
  draw();
  if (!follow) scroller.scrollTop = top;
  if (problem) await showProblem(problem, answerAgain);
  else say(finish === "stopped" ? "Stopped." : "The answer is complete.");
  poll();
}

/** One line on how an answer was made. */
function note(clock, usage, finish) {
  const parts = [];
  const tokens = usage?.completion_tokens ?? clock.pieces;
  const seconds = (clock.last - clock.first) / 1000;
  if (tokens) parts.push(`${tokens.toLocaleString("en")} tokens`);
  if (tokens > 1 && seconds > 0.05) parts.push(`${digits((tokens - 1) / seconds)} tokens/s`);
  if (clock.first) parts.push(`first after ${digits((clock.first - clock.began) / 1000)} s`);
  if (finish === "stopped" || finish === "broke off") parts.push(finish);
  if (finish === "length") parts.push("ended by its length");
  return parts.join(" · ");
}

function setBusy(busy) {
  const focused = document.activeElement === $("send") || document.activeElement === $("stop");
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  document.body.classList.toggle("busy", busy);
  if (focused && wide.matches) input.focus(); // a phone would open its keyboard over the answer
}

function stop() {
  running?.controller.abort();
}

function beginEdit() {
  if (running) return;
  editing = true;
  input.value = conversation.messages.findLast((m) => m.role === "user").content;
  $("editing").hidden = false;
  fitInput();
  input.focus();
}

function endEdit() {
  editing = false;
  $("editing").hidden = true;
}

function cancelEdit() {
  endEdit();
  input.value = "";
  fitInput();
  input.focus();
}

function newChat() {
  stop();
  endEdit();
  endProblem();
  conversation.messages = [];
  conversation.tokens = null;
  saveConversation();
  draw();
  input.focus();
}

// -- problems and the key --------------------------------------------------------------------------------------------

let again = null;

/** Shows what went wrong, or asks for a key and goes on with `retry` if that is what is missing. */
async function showProblem(error, retry) {
  if (error.status === 401 && (await askKey())) {
    retry();
    return;
  }
  again = retry;
  $("problem-text").textContent = error instanceof ServerError ? error.message : `The page failed: ${error}`;
  $("problem").hidden = false;
}

function endProblem() {
  $("problem").hidden = true;
}

let keyAsked = null;

/** Resolves to whether a key was given. */
function askKey() {
  keyAsked ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.returnValue = "";
    $("key").value = "";
    dialog.addEventListener(
      "close",
      () => {
        const key = dialog.returnValue === "key" ? $("key").value.trim() : "";
        if (key) setKey(key);
        keyAsked = null;
        input.focus();
        resolve(Boolean(key));
      },
      { once: true },
    );
    dialog.showModal();
  });
  return keyAsked;
}

// -- the panel -------------------------------------------------------------------------------------------------------

let timer = 0;
let keyRefused = false; // asked for once; after that only when a message is sent

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const now = await status();
    keyRefused = false;
    showStatus(now);
    showModel(now, conversation.tokens);
    running?.waiting.server(now);
  } catch (error) {
    showNoStatus(error.message);
    if (error.status === 401 && !keyRefused) {
      keyRefused = true;
      if (await askKey()) {
        keyRefused = false;
        poll();
        return;
      }
    }
  }
  clearTimeout(timer);
  timer = setTimeout(poll, running ? 500 : 2000);
}

function setPanel(open) {
  $("panel").hidden = !open;
  $("toggle-panel").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("with-panel", open);
}

function closePanel() {
  setPanel(false);
  $("toggle-panel").focus();
}

// -- small things ----------------------------------------------------------------------------------------------------

const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
const toEnd = () => (scroller.scrollTop = scroller.scrollHeight);

function say(text) {
  $("spoken").textContent = text;
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

const isDark = () =>
  (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
  "dark";

function nameTheme() {
  const label = isDark() ? "Use light colours" : "Use dark colours";
  $("theme").setAttribute("aria-label", label);
  $("theme").title = label;
}

function turnTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("ramforge.theme", theme);
  nameTheme();
}

function openSettings() {
  $("system").value = settings.system;
  $("temperature").value = settings.temperature ?? "";
  $("max-tokens").value = settings.maxTokens ?? "";
  $("settings").showModal();
}

function takeSettings() {
  const number = (id) => ($(id).value === "" || !$(id).validity.valid ? null : Number($(id).value));
  settings.system = $("system").value;
  settings.temperature = number("temperature");
  settings.maxTokens = number("max-tokens");
  saveSettings();
  input.focus();
}

// -- what happens when -----------------------------------------------------------------------------------------------

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running) stop();
  else if (editing) cancelEdit();
  else if (!wide.matches && !$("panel").hidden) closePanel();
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", newChat);
$("cancel-edit").addEventListener("click", cancelEdit);
$("retry").addEventListener("click", () => {
  endProblem();
  again();
});
$("theme").addEventListener("click", turnTheme);
$("toggle-panel").addEventListener("click", () => {
  setPanel($("panel").hidden);
  if (!$("panel").hidden && !wide.matches) $("close-panel").focus();
});
$("close-panel").addEventListener("click", closePanel);
$("open-settings").addEventListener("click", openSettings);
$("settings").addEventListener("close", takeSettings);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key-dialog").close("key");
});
$("key-cancel").addEventListener("click", () => $("key-dialog").close());
$("to-end").addEventListener("click", () => {
  toEnd();
  input.focus();
});
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => {
    input.value = idea.textContent;
    send();
  });
}
scroller.addEventListener("scroll", () => ($("to-end").hidden = atEnd()), { passive: true });
document.addEventListener("visibilitychange", poll);
addEventListener("pagehide", saveConversation);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
wide.addEventListener("change", () => setPanel(wide.matches));

nameTheme();
setPanel(wide.matches);
draw();
poll();
if (wide.matches) input.focus();
