// The list of messages, as it is on the page.

import { copyText, element, render } from "./markdown.js";

/**
 * Draws the messages; nodes of those that are there already stay, so that nothing is read out or loses its selection.
 * actions: `edit()` the last message of the user, `again()` answer it once more.
 */
export function drawMessages(list, messages, actions) {
  const lastQuestion = messages.findLastIndex((m) => m.role === "user");
  messages.forEach((message, i) => {
    let node = list.children[i];
    if (node?.message !== message) {
      const made = messageNode(message);
      if (node) node.replaceWith(made);
      else list.append(made);
      node = made;
    }
    const buttons = [button("Copy", (self) => copyText(message.content, self))];
    if (i === lastQuestion) buttons.push(button("Edit", actions.edit));
    if (i === messages.length - 1) {
      buttons.push(button(message.role === "assistant" ? "Answer again" : "Answer", actions.again));
    }
    node.querySelector(".note").textContent = message.note ?? "";
    node.querySelector(".actions").replaceChildren(...buttons);
  });
  while (list.children.length > messages.length) list.lastElementChild.remove();
}

function button(label, act) {
  const made = element("button", { type: "button", className: "quiet", textContent: label });
  made.addEventListener("click", () => act(made));
  return made;
}

function messageNode(message) {
  const ofUser = message.role === "user";
  const body = element("div", { className: "body" });
  if (ofUser) body.textContent = message.content;
  else render(body, message.content);
  const foot = element(
    "div",
    { className: "foot", ariaLive: "off" },
    element("span", { className: "note" }),
    element("span", { className: "actions" }),
  );
  const speaker = element("span", { className: "unseen", textContent: ofUser ? "You: " : "Answer: " });
  return element("li", { className: `message ${message.role}`, message }, speaker, body, foot);
}

/** What a running answer shows before its first word. */
export class Waiting {
  constructor(node) {
    this.bar = element("progress", { max: 1 });
    this.bar.removeAttribute("value");
    this.bar.setAttribute("aria-label", "Prompt");
    this.label = element("span", { textContent: "Reading the prompt" });
    this.node = element("p", { className: "waiting" }, element("span", { className: "dots" }), this.label, this.bar);
    this.bar.hidden = true;
    this.prompt = null;
    node.querySelector(".body").before(this.node);
  }

  /** The prompt so far: `{done, total}` tokens. */
  reads(prompt) {
    this.prompt = prompt;
    this.#show(prompt.done / prompt.total, `${prompt.done.toLocaleString("en")} of ${prompt.total.toLocaleString("en")} tokens`);
  }

  /** How the server is: others may come first, and a pass may take long. */
  server(status) {
    const { active, waiting, parallel } = status.requests;
    if (!this.prompt && waiting && active >= parallel) {
      this.label.textContent = `Waiting for a place: ${active} answers are being made, ${waiting} wait`;
    } else if (!this.prompt && status.pass_done !== null && status.pass_done < 1) {
      this.#show(status.pass_done, `${Math.round(status.pass_done * 100)} % of a pass through the weights`);
    }
  }

  #show(share, text) {
    this.bar.hidden = false;
    this.bar.value = share;
    this.label.textContent = `Reading the prompt: ${text}`;
  }

  end() {
    this.node.remove();
  }
}
