// What the page asks of its server.

const KEY = "ramforge.key";

/** A request that the server refused, or that did not get through; `status` is 0 then. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The key goes with this tab. */
export const setKey = (key) => sessionStorage.setItem(KEY, key);

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Does it still run?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

export const status = async () => (await ask("/status", { signal: AbortSignal.timeout(10000) })).json();

/**
 * Streams an answer: yields `{text}`, `{prompt: {done, total}}`, `{finish}` and `{usage}` as they come.
 * Throws ServerError, or AbortError once `signal` says so.
 */
export async function* chat(body, signal) {
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const line of lines(response.body)) {
    if (line.startsWith(":")) {
      const match = /prompt (\d+) of (\d+)/.exec(line);
      if (match) yield { prompt: { done: Number(match[1]), total: Number(match[2]) } };
      continue;
    }
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(event.error.message, 500);
    const [choice] = event.choices;
    if (choice?.delta.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (event.usage) yield { usage: event.usage };
  }
  throw new ServerError("The answer broke off: the connection was closed.");
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The answer broke off: the server cannot be reached any more.");
  } finally {
    reader.cancel().catch(() => {}); // whoever wants no more lines closes the connection
  }
}
