// The conversation and the settings, kept in this browser.

const CHAT = "ramforge.chat";
const SETTINGS = "ramforge.settings";

function load(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

function save(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // Full or forbidden: the conversation then lasts as long as the page.
  }
}

const isMessage = (m) => ["user", "assistant"].includes(m?.role) && typeof m.content === "string" && m.content;

/** `messages`: `{role, content, note}`, where a note tells how an answer was made; `tokens`: of all, null if unknown. */
const kept = load(CHAT, {});
export const conversation = {
  messages: Array.isArray(kept.messages) ? kept.messages.filter(isMessage) : [],
  tokens: Number.isInteger(kept.tokens) ? kept.tokens : null,
};

/** `system`: text; `temperature` and `maxTokens`: null leaves them to the server. */
export const settings = { system: "", temperature: null, maxTokens: null, ...load(SETTINGS, {}) };

export const saveConversation = () => save(CHAT, conversation);
export const saveSettings = () => save(SETTINGS, settings);

/** What is asked of the server, for an answer to all messages so far. */
export function request(messages) {
  const turns = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content } of messages) {
    const before = turns.at(-1);
    // Many templates want turns to alternate: a question without an answer goes with the next one.
    if (before?.role === role) before.content += `\n\n${content}`;
    else if (content) turns.push({ role, content });
  }
  return {
    messages: turns,
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    ...(settings.maxTokens === null ? {} : { max_tokens: settings.maxTokens }),
  };
}
