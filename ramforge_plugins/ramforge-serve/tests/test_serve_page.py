"""The page, as a browser shows it: against a server that answers as a test says, and against the real one."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from browsing import chromium, stub_server
from serving import get, listening, post, wait_until

from ramforge_serve import sse

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture
def stub():
    with stub_server() as made:
        yield made


@pytest.fixture
def visit(browser):
    """Opens pages, and sees to it that they log no errors and ask nobody but their server."""
    contexts, faults, hosts = [], [], set()

    def note(message, expected):
        if message.type == "error" and not re.search(expected, message.text):
            faults.append(message.text)

    def open_page(url, *, expected=r"$^", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: note(message, expected))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        hosts.add(urlsplit(url).netloc)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    assert len(hosts) <= 1, hosts


def ask(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def until_done(page):
    page.wait_for_selector("#send", state="visible")


def answered(page, stub, text):
    """The body of an answer that says ``text``."""
    stub.answer(text)
    ask(page, "Say it")
    until_done(page)
    return page.locator(".assistant .body").last


def kept(page):
    return page.evaluate("JSON.parse(localStorage.getItem('ramforge.chat')).messages")


# -- what comes from where -----------------------------------------------------------------------------------------


def test_headers_let_nothing_in_but_our_own_files(url):
    for path in ("/", "/web/app.js", "/web/style.css"):
        answer = get(url + path)
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    html = get(url).text
    assert not re.search(r"https?://|<style|\sstyle=|\son\w+=|<script(?! src=)", html)


def test_every_control_has_a_name(visit, stub):
    page = visit(stub.url)
    answered(page, stub, "```\ncode\n```")
    page.click("#open-settings")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, [role=img], dialog, aside")]
            .filter((n) => !(n.ariaLabel || n.getAttribute("aria-labelledby") || n.labels?.length
                             || n.textContent.trim()))
            .map((n) => n.outerHTML)"""
    )
    assert nameless == []


# -- chat with the real server ---------------------------------------------------------------------------------------


def test_an_answer_streams_and_is_the_servers(visit, url):
    page = visit(url)
    page.evaluate(
        "localStorage.setItem('ramforge.settings', JSON.stringify({temperature: 0, maxTokens: 60}))"
    )
    page.reload()
    page.evaluate(
        """() => {
            window.lengths = [];
            const look = () => lengths.push(document.querySelector(".assistant .body")?.textContent.length ?? 0);
            new MutationObserver(look).observe(document.getElementById("messages"), {subtree: true, childList: true});
        }"""
    )
    ask(page, "Name three colours.")
    until_done(page)
    body = {
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 60,
    }
    text = post(f"{url}/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert [m["content"] for m in kept(page)] == ["Name three colours.", text]
    lengths = [n for n in page.evaluate("lengths") if n]
    assert len(set(lengths)) >= 3  # it came in pieces
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s", page.inner_text(".assistant .note"))


def test_the_panel_says_what_the_server_does(visit, url, service):
    page = visit(url)
    expect(page.locator("#model-name")).to_have_text("smollm2")
    expect(page.locator("#memory-used")).to_contain_text("MiB")
    assert "MiB" in page.inner_text("#weights-size")
    assert f"of {service.context:,} tokens".removeprefix("of ") in page.inner_text("#model-facts")
    ask(page, "Tell a very long story about a lighthouse, in all detail.")
    expect(page.locator("#tokens-rate")).to_have_text(re.compile("[1-9]"), timeout=30_000)
    expect(page.locator("#requests")).to_have_text("1 of 4 places busy")
    page.keyboard.press("Escape")
    until_done(page)


@pytest.mark.parametrize("way", ["Escape", "button"])
def test_stop(visit, url, service, way):
    page = visit(url)
    ask(page, "Tell a very long story about a lighthouse, in all detail.")
    page.wait_for_selector(".assistant .body p")
    if way == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    until_done(page)
    assert "stopped" in page.inner_text(".assistant .note")
    assert kept(page)[1]["content"]
    wait_until(lambda: service.scheduler.load.active == 0)  # though the page goes on being open
    expect(page.locator("#requests")).to_have_text("Nothing runs.")


def test_a_key_is_asked_for_and_kept_in_the_tab(visit, service):
    with listening(service, api_key="sesame") as url:
        page = visit(url, expected="401")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "sesame")
        page.press("#key", "Enter")
        expect(page.locator("#model-name")).to_have_text("smollm2")
        assert page.evaluate("sessionStorage.getItem('ramforge.key')") == "sesame"
        assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")
        ask(page, "Hello")
        page.wait_for_selector(".assistant .body p")
        page.keyboard.press("Escape")
        until_done(page)


# -- chat with a server that does as it is told ----------------------------------------------------------------------


def test_the_prompt_shows_how_far_it_is(visit, stub):
    page = visit(stub.url)
    ask(page, "A long text")
    expect(page.locator(".waiting")).to_contain_text("25 % of a pass")
    stub.send(sse.comment("prompt 512 of 2048 tokens"))
    expect(page.locator(".waiting")).to_contain_text("512 of 2,048 tokens")
    assert page.evaluate("document.querySelector('progress').value") == 0.25
    stub.say("Here")
    page.wait_for_selector(".waiting", state="detached")
    assert page.get_attribute(".assistant", "aria-busy") == "true"
    stub.end()
    until_done(page)
    assert page.get_attribute(".assistant", "aria-busy") is None
    assert page.inner_text("#spoken") == "The answer is complete."
    expect(page.locator("#model-facts")).to_contain_text("1,234 of 4,096 tokens")


def test_settings_go_with_the_request(visit, stub):
    page = visit(stub.url)
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.fill("#temperature", "0.5")
    page.fill("#max-tokens", "99")
    page.click("text=Done")
    answered(page, stub, "Yes")
    sent = stub.asked[-1]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say it"},
    ]
    assert (sent["temperature"], sent["max_tokens"], sent["stream"]) == (0.5, 99, True)


def test_a_conversation_outlives_a_reload_and_ends_with_a_new_one(visit, stub):
    page = visit(stub.url)
    answered(page, stub, "Once.")
    page.reload()
    assert page.inner_text(".assistant .body") == "Once."
    answered(page, stub, "Twice.")
    assert [m["content"] for m in stub.asked[-1]["messages"]] == ["Say it", "Once.", "Say it"]
    page.click("#new-chat")
    assert page.locator(".message").count() == 0
    assert page.is_visible("#welcome")
    page.reload()
    assert page.locator(".message").count() == 0


def test_a_new_chat_in_the_middle_of_an_answer_stays_empty(visit, stub):
    page = visit(stub.url)
    ask(page, "Say it")
    stub.say("Never")
    page.wait_for_selector(".assistant .body p")
    page.click("#new-chat")
    until_done(page)
    assert stub.left.wait(10)
    assert kept(page) == []
    assert page.locator(".message").count() == 0


def test_answer_again_and_edit(visit, stub):
    page = visit(stub.url)
    answered(page, stub, "First.")
    stub.answer("Second.")
    page.click("text=Answer again")
    until_done(page)
    assert [m["content"] for m in kept(page)] == ["Say it", "Second."]
    assert [m["role"] for m in stub.asked[-1]["messages"]] == ["user"]
    page.click("text=Edit")
    assert page.input_value("#input") == "Say it"
    page.keyboard.press("Escape")
    assert page.input_value("#input") == ""
    page.click("text=Edit")
    stub.answer("Third.")
    ask(page, "Say more")
    until_done(page)
    assert [m["content"] for m in kept(page)] == ["Say more", "Third."]


def test_errors_are_text_and_can_be_tried_again(visit, stub):
    page = visit(stub.url, expected="429|ERR_")
    stub.refusal = (429, "too many <b>requests</b> wait")
    ask(page, "Say it")
    page.wait_for_selector("#problem", state="visible")
    assert page.inner_text("#problem-text") == "too many <b>requests</b> wait"
    stub.say("Half")
    stub.send(sse.event({"error": {"message": "the disk is gone"}}))
    page.click("#retry")
    page.wait_for_selector("#problem", state="visible")
    assert page.inner_text("#problem-text") == "the disk is gone"
    assert kept(page)[1]["content"] == "Half"
    page.route("**/v1/**", lambda route: route.abort())
    page.click("#retry")
    page.wait_for_selector("#problem", state="visible")
    assert "cannot be reached" in page.inner_text("#problem-text")
    page.unroute("**/v1/**")
    while stub._parts:
        stub._parts.pop()
    stub.answer("Whole")
    page.click("#retry")
    until_done(page)
    assert [m["content"] for m in kept(page)] == ["Say it", "Whole"]
    assert page.is_hidden("#problem")


# -- Markdown --------------------------------------------------------------------------------------------------------

MARKDOWN = """# Title

Some **bold**, *italic*, ***both***, ~~gone~~ and `a < b` with 2 * 3 * 4 and snake_case_name.
Second line, [a site](https://example.com/a_(b)) and https://example.com/x.

1. one
   - inner
2. two
   ```python
   print("*no*")
   ```

> quoted
> > twice

| a | b |
|---|--:|
| 1 | `x` |

---
"""


def test_markdown(visit, stub):
    page = visit(stub.url)
    body = answered(page, stub, MARKDOWN)
    found = {
        name: body.locator(name).all_text_contents()
        for name in ("h1", "strong", "em", "s", "p code", "ol > li > ul > li", "pre code", "td", "th", "a")
    }
    assert found == {
        "h1": ["Title"],
        "strong": ["bold", "both"],
        "em": ["italic", "both"],
        "s": ["gone"],
        "p code": ["a < b"],
        "ol > li > ul > li": ["inner"],
        "pre code": ['print("*no*")'],
        "td": ["1", "x"],
        "th": ["a", "b"],
        "a": ["a site", "https://example.com/x"],
    }
    assert body.locator("blockquote blockquote").inner_text() == "twice"
    assert body.locator("ol").first.locator("> li").count() == 2
    assert "2 * 3 * 4 and snake_case_name" in body.inner_text()
    links = body.locator("a").evaluate_all("(nodes) => nodes.map((n) => [n.href, n.rel])")
    assert links[0] == ["https://example.com/a_(b)", "noopener noreferrer"]
    assert body.locator("hr").count() == 1


def test_markdown_in_pieces_is_markdown_in_one(visit, stub):
    page = visit(stub.url)
    whole = answered(page, stub, MARKDOWN).inner_html()
    page.click("#new-chat")
    ask(page, "Say it")
    for at in range(0, len(MARKDOWN), 7):
        stub.say(MARKDOWN[at : at + 7])
    expect(page.locator(".assistant td")).to_have_count(2)
    stub.end()
    until_done(page)
    assert page.locator(".assistant .body").inner_html() == whole


HOSTILE = [
    "<script>window.hit = 1</script>",
    '<img src="x" onerror="window.hit = 1">',
    "![picture](https://example.com/tracker.png)",
    "[link](javascript:window.hit=1)",
    "[link](JaVaScRiPt:window.hit=1)",
    "[link](data:text/html,<script>window.hit=1</script>)",
    "[link](/v1/models)",
    "<javascript:window.hit=1>",
    "**<iframe srcdoc='x'>** and `<svg onload=window.hit=1>`",
    '```"><img src=x onerror=window.hit=1>\n</code><script>window.hit = 1</script>\n```',
    '| <b onclick="window.hit=1">x</b> | y |\n|---|---|\n| </td><script>window.hit=1</script> | z |',
    "> " * 500 + "deep",
    "*" * 3000,
    "[" * 3000 + "](" * 500,
    "`" * 2000 + " " + "_a" * 2000,
]


def test_text_of_a_model_never_becomes_markup(visit, stub):
    page = visit(stub.url)
    for text in HOSTILE:
        body = answered(page, stub, text)
        made = set(body.evaluate("(n) => [...n.querySelectorAll('*')].map((x) => x.localName)"))
        assert not made & {"script", "img", "iframe", "svg", "b", "object", "style"}, text
        names = body.evaluate("(n) => [...n.querySelectorAll('*')].flatMap((x) => x.getAttributeNames())")
        assert not [n for n in names if n.startswith("on") or n in ("src", "srcdoc", "style")], text
        hrefs = body.locator("a").evaluate_all("(nodes) => nodes.map((n) => n.protocol)")
        assert set(hrefs) <= {"https:"}, text
        assert page.evaluate("window.hit") is None
        page.click("#new-chat")
    shown = answered(page, stub, HOSTILE[3]).inner_text()
    assert shown == HOSTILE[3]


def test_text_of_a_user_is_text(visit, stub):
    page = visit(stub.url)
    stub.answer("Yes")
    ask(page, "<img src=x onerror=window.hit=1> **plain**")
    until_done(page)
    assert page.inner_text(".user .body") == "<img src=x onerror=window.hit=1> **plain**"
    assert page.locator(".user .body *").count() == 0


def test_code_is_copied(visit, stub):
    page = visit(stub.url, permissions=["clipboard-read", "clipboard-write"])
    answered(page, stub, "```py\na = 1\n\nb = 2\n```")
    page.click(".copy")
    expect(page.locator(".copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "a = 1\n\nb = 2"


# -- looks and keys --------------------------------------------------------------------------------------------------


def ground(page):
    """Brightness of the page, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_dark_and_light(visit, stub):
    assert ground(visit(stub.url, color_scheme="light")) > 200
    page = visit(stub.url, color_scheme="dark")
    assert ground(page) < 60
    page.click("#theme")
    assert ground(page) > 200
    page.reload()
    assert ground(page) > 200
    assert page.get_attribute("#theme", "aria-label") == "Use dark colours"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(visit, stub, width):
    page = visit(stub.url, viewport={"width": width, "height": 640})

    def overflow():
        return page.evaluate(
            """() => [document.documentElement, document.getElementById("scroller"), document.getElementById("panel")]
                .map((n) => n.scrollWidth - n.clientWidth)"""
        )

    assert overflow() == [0, 0, 0]
    wide = "| " + " | ".join(["column" * 3] * 9) + " |\n|" + "---|" * 9
    answered(page, stub, f"{'unbroken' * 60}\n\n```\n{'x = 1; ' * 60}\n```\n\n{wide}\n\n- `{'code' * 80}`")
    assert overflow() == [0, 0, 0]
    if page.is_hidden("#panel"):
        page.click("#toggle-panel")
    assert page.is_visible("#memory-bar")
    assert overflow() == [0, 0, 0]


def test_keys_alone_do_everything(visit, stub):
    page = visit(stub.url, viewport={"width": 1280, "height": 800})

    def focused():
        return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")

    assert focused() == "input"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#input") == "one\ntwo"
    page.keyboard.press("Enter")
    stub.say("An answer that goes on")
    page.wait_for_selector(".assistant .body p")
    page.keyboard.press("Escape")
    until_done(page)
    assert stub.left.wait(10)
    assert kept(page)[0]["content"] == "one\ntwo"
    assert focused() == "input"
    page.focus(".skip")
    order = []
    for _ in range(12):
        order.append(focused())
        page.keyboard.press("Tab")
    assert order[:5] == ["Skip to the message", "new-chat", "open-settings", "theme", "toggle-panel"]
    assert [x for x in order if x in ("Copy", "Edit", "Answer again", "input", "send")] == [
        "Copy",
        "Edit",
        "Copy",
        "Answer again",
        "input",
        "send",
    ]
    page.focus("#open-settings")
    page.keyboard.press("Enter")
    page.wait_for_selector("#settings[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#settings", state="hidden")


def test_on_a_narrow_window_the_panel_opens_and_closes_by_keys(visit, stub):
    page = visit(stub.url, viewport={"width": 390, "height": 800})
    assert page.is_hidden("#panel")
    page.focus("#toggle-panel")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "close-panel"
    assert page.get_attribute("#toggle-panel", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert page.is_hidden("#panel")
    assert page.evaluate("document.activeElement.id") == "toggle-panel"
