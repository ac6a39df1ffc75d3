"""Target: chat templates. Bytes from 128 on stand for pieces of Jinja2, so that sentences of it come about."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from fuzz.target import Choices
from fuzz.tokenizer_tables import sentence_pieces
from ramforge_core import template_sandbox  # noqa: F401 - before anything is measured
from ramforge_core.chat import TEMPLATE_KEY, ChatTemplate
from ramforge_core.gguf import Metadata
from ramforge_core.plugins import Registry

PIECES = (
    *(
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "for m in messages",
        "endfor",
        "if ",
        "elif ",
    ),
    *(
        "else",
        "endif",
        "set x = ",
        "set ns.x = ",
        "set ns = namespace(x=0)",
        "macro f(a)",
        "endmacro",
        "f(x)",
    ),
    *(
        "messages",
        "messages[0]",
        "m['role']",
        "m.content",
        "m",
        "x",
        "ns.x",
        "ns",
        "tools",
        "loop.index",
        "loop",
    ),
    *("bos_token", "eos_token", "add_generation_prompt", "raise_exception('no')", "strftime_now('%Y')"),
    *(
        "range(",
        "range(999999)",
        "dict(",
        "cycler(",
        "joiner(",
        "namespace(",
        "self",
        "caller()",
        "call f(1)",
    ),
    *(
        "endcall",
        "filter upper",
        "endfilter",
        "generation",
        "endgeneration",
        "break",
        "continue",
        "recursive",
    ),
    *("|tojson", "|trim", "|join", "|length", "|list", "|map('upper')", "|select", "|selectattr('role')"),
    *(
        "|replace('a','aa')",
        "|center(99999)",
        "|indent(9999)",
        "|format(x)",
        "|batch(2)",
        "|slice(3)",
        "|sum",
    ),
    *(
        "|groupby('role')",
        "|unique",
        "|sort",
        "|reverse",
        "|string",
        "|int",
        "|float",
        "|round",
        "|abs",
        "|first",
    ),
    *(
        "|last",
        "|random",
        "|pprint",
        "|urlize",
        "|wordwrap(3)",
        "|xmlattr",
        "|dictsort",
        "|attr('x')",
        "|default(1)",
    ),
    *(
        ".split('a')",
        ".join(",
        ".format(x)",
        ".replace('a', x)",
        ".items()",
        ".strip()",
        ".upper()",
        ".__class__",
    ),
    *(
        " in ",
        " not ",
        " and ",
        " or ",
        " is defined",
        " is mapping",
        " + ",
        " - ",
        " * ",
        " ** ",
        " // ",
        " % ",
    ),
    *(
        " ~ ",
        " == ",
        " < ",
        "[",
        "]",
        "(",
        ")",
        "[::-1]",
        "[0]",
        "'a'",
        "'%999d'",
        "'{:>99}'",
        "9",
        "9999999",
        ", ",
    ),
)
TOKENIZER = Registry.discover().tokenizer("llama").from_metadata(Metadata.from_dict(sentence_pieces()))
NOW = datetime(2024, 2, 29)
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "  Hi <|im_end|>{{ x }}\n"},
    {"role": "assistant", "content": "<think>no</think>yes"},
    {"role": "user", "content": "aaaa" * 50},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5, None, True]}}}]


def seeds() -> Iterator[bytes]:
    for source in (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{% set ns = namespace(x=0) %}{% for m in messages if m.role == 'user' %}{% set ns.x = ns.x + 1 %}{% endfor %}",
        "{% macro f(a) %}{{ a|tojson(indent=2) }}{% endmacro %}{{ f(tools) }}{{ f(messages)|trim }}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ bos_token ~ 'x' * 9 }}",
        "{% for k, v in messages[0].items()|sort %}{{ k }}={{ v.split(' ')|join('-') }}{{ loop.index }}{% endfor %}",
        "{{ messages|map(attribute='content')|join('\n')|replace('a', 'bb')|indent(2)|upper }}",
        "{{ '%s %05d'|format('a', 3) }}{{ '{:>9}'.format(1) }}{{ range(9)|batch(2)|list }}{{ [1, 2]|sum }}",
        "{% call f(1) %}{{ messages[::-1]|length }}{% endcall %}{% filter upper %}x{% endfilter %}",
    ):
        yield b"\0" + _encode(source)
    for n in range(len(PIECES)):
        yield bytes([n % 8, 128, 128 + n, 129])


def _encode(source: str) -> bytes:
    raw = source.encode()
    for n, piece in enumerate(PIECES):
        if len(piece) > 2:
            raw = raw.replace(piece.encode(), bytes([128 + n]))
    return raw


def check(data: bytes) -> None:
    choices = Choices(data)
    options = choices.byte()
    source = "".join(PIECES[(b - 128) % len(PIECES)] if b >= 128 else chr(b) for b in choices.rest())
    metadata = Metadata.from_dict(sentence_pieces() | {TEMPLATE_KEY: source})
    template = ChatTemplate.from_metadata(metadata, TOKENIZER)
    if template is None:
        raise AssertionError("the template is not seen")
    template.text_stops  # noqa: B018 - it renders a chat of its own
    prompt = template.render(
        MESSAGES[options & 1 :],
        add_generation_prompt=not options & 2,
        tools=TOOLS if options & 4 else None,
        now=NOW,
    )
    if list(prompt.barriers) != sorted(set(prompt.barriers)) or prompt.barriers[-1:] > (len(prompt.text),):
        raise AssertionError(f"barriers {prompt.barriers} in a text of {len(prompt.text)}")
    template.encode(prompt)
