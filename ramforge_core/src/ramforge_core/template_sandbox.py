"""The sandbox that a model's chat template is rendered in.

A template comes out of a file that anybody may have made, so it is foreign code. Jinja2's immutable sandbox keeps it
away from Python's insides; `Meter` keeps it from running for ever or filling the memory. This module knows nothing of
messages or tokens, and it is the only one that imports Jinja2: import it late.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ramforge_core.errors import TemplateError

MAX_SOURCE = 1 << 20
"""Characters in a template. The longest one in circulation has about 20,000."""
BASE_ALLOWANCE = 20_000_000
"""Units of work that a render may spend, to which `ALLOWANCE_PER_CHARACTER` of the input is added."""
ALLOWANCE_PER_CHARACTER = 100
STEP_COST = 16
"""Units for a loop's turn or a call; each character that is made costs one more."""
MAX_SECONDS = 10.0
MAX_INTEGER_BITS = 4096
MAX_FORMAT_FIELD = re.compile(r"[{%][^{}%]*(?:\*|\d{7,}|:[^{}]*\{)")
"""A format string that asks for a field of a million characters, or for a width that only an argument tells."""
GROWING = frozenset(
    "join center ljust rjust zfill expandtabs translate indent wordwrap tojson batch slice xmlattr urlize".split()
)
"""Methods and filters whose result may be as long as the product of what they are given."""


class TemplateRefusal(TemplateError):
    """The template itself called ``raise_exception``."""


class _Overrun(jinja2.TemplateRuntimeError):
    """The meter ran out."""


class _Refusal(jinja2.TemplateError):
    """What ``raise_exception`` raises inside Jinja2."""


class Meter:
    """What one render has left to spend.

    Every value that a template makes is measured, so that nothing it holds ever unfolds to more than ``allowance``
    characters (a list that holds a list twice, sixty deep, takes no memory until it is printed). Results that would be
    large are refused before they are made.
    """

    def __init__(self, allowance: int) -> None:
        self.allowance = allowance
        self.left = allowance
        self.deadline = time.monotonic() + MAX_SECONDS

    def overrun(self, what: str) -> NoReturn:
        raise _Overrun(f"it {what}")

    def spend(self, units: int) -> None:
        self.left -= STEP_COST + units
        if self.left < 0 or time.monotonic() > self.deadline:
            self.overrun("does not come to an end in the work that a chat template may take")

    def size(self, value: object) -> int:
        """Characters and elements that a value unfolds to, at least 1. Spends a unit for each element."""
        total, seen, stack = 1, 0, [value]
        while stack:
            item = stack.pop()
            parts: Iterable[object] = ()
            if isinstance(item, (str, bytes)):
                total += len(item)
            elif isinstance(item, Mapping):
                total += 2 * len(item)
                parts = (*item.keys(), *item.values())
            elif isinstance(item, (list, tuple, set, frozenset)):
                total += len(item)
                parts = item
            elif isinstance(item, Namespace):
                parts = tuple(vars(item).get("_Namespace__attrs", {}).values())
                total += 1 + len(parts)
            elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
                self.overrun("makes an absurdly large number")
            if total > self.allowance:
                self.overrun("makes a value that is larger than a chat prompt can be")
            stack.extend(parts)
            seen += 1
        self.spend(seen)
        return total

    def expect(self, n_characters: int) -> None:
        """Refuse a result before it is made."""
        if n_characters > self.allowance:
            self.overrun("makes a value that is larger than a chat prompt can be")

    def before(self, name: str, operands: Sequence[object]) -> None:
        """Measure what a call, filter or operator gets, and foresee how long its result may be."""
        sizes = [self.size(operand) for operand in operands]
        first = operands[0] if operands else None
        if name == "replace" and len(operands) >= 3 and all(isinstance(o, str) for o in operands[:3]):
            text, old, new = (str(o) for o in operands[:3])
            self.expect(len(text) + text.count(old) * len(new))
        elif name in ("format", "format_map", "%") and isinstance(first, str):
            if MAX_FORMAT_FIELD.search(first):
                self.overrun("formats a field of an absurd or unknown width")
            self.expect(len(first) + (first.count("{") + first.count("%")) * sum(sizes[1:]))
        elif name in GROWING or name == "*":
            product = 1
            for operand, size in zip(operands, sizes, strict=True):
                product *= max(1, abs(operand)) if isinstance(operand, int) else size
            if name != "*" or not all(isinstance(o, (int, float)) for o in operands):
                self.expect(product)
        elif name == "**" and all(isinstance(o, int) for o in operands):
            base, exponent = (int(o) for o in operands[:2])  # type: ignore[call-overload]
            if exponent * base.bit_length() > MAX_INTEGER_BITS:
                self.overrun("makes an absurdly large number")

    def after(self, result: object) -> None:
        """Measure and charge a result."""
        self.size(result)
        if isinstance(result, (str, bytes, list, tuple)):
            self.spend(len(result))


class _Metered(NodeTransformer):
    """Puts the meter where Jinja2 has no hook for it: loops, ``~`` and literals."""

    @staticmethod
    def _call(name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None).set_lineno(at.lineno)

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("tick", [], node)).set_lineno(node.lineno))
        if node.test is not None:
            node.test = nodes.And(self._call("tick", [], node), node.test).set_lineno(node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return self._call("concatenate", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Call:
        self.generic_visit(node)
        return self._call("literal", [node], node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return self._call("literal", [node], node) if node.ctx == "load" else node


class _Generation(Extension):
    """The block ``{% generation %}``: marks the assistant's text for training, means nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    meter: Meter

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Metered().visit(tree)
        return tree

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # Jinja2 waits until the forbidden thing is used; a template that only tries is refused as well
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r}")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        operands = (*args, *kwargs.values())
        if isinstance(owner, (str, bytes, list, dict, tuple)):
            operands = (owner, *operands)
        __self.meter.before(getattr(__obj, "__name__", ""), operands)
        result = super().call(__context, __obj, *args, **kwargs)
        __self.meter.after(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.before(operator, (left, right))
        result = super().call_binop(context, operator, left, right)
        self.meter.after(result)
        return result

    def tick(self) -> bool:
        return True  # being called is what costs

    def literal(self, value: object) -> object:
        return value  # measured as the argument of a call

    def concatenate(self, *parts: object) -> str:
        return "".join(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        held, n_characters = [], 0
        for part in parts:
            n_characters += len(part)
            self.meter.expect(n_characters)
            held.append(part)
        self.meter.spend(n_characters)
        return "".join(held)


def _metered_filter(environment: _Environment, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps Jinja2's marks about which context a filter wants
    def run(*args: Any, **kwargs: Any) -> Any:
        first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
        environment.meter.before(name, (*args[first:], *kwargs.values()))
        result = function(*args, **kwargs)
        environment.meter.after(result)
        return result

    return run


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: raw UTF-8, and no HTML escapes, unlike Jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _environment() -> _Environment:
    """Jinja2 as transformers sets it up (chat_template_utils.py), with the meter around everything."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols]
    )
    environment.meter = Meter(BASE_ALLOWANCE)

    @pass_context  # a finalizer that wants the context keeps the compiler from working out constants
    def finalize(_context: Context, value: object) -> object:
        environment.meter.spend(environment.meter.size(value))
        return value

    environment.finalize = finalize
    environment.filters["tojson"] = _tojson
    for name, function in list(environment.filters.items()):
        environment.filters[name] = _metered_filter(environment, name, function)
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment


class SandboxedTemplate:
    """One compiled template. Safe from several threads, which wait for each other."""

    def __init__(self, source: str) -> None:
        """Compile. Raises TemplateError if the template is faulty or absurdly long."""
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters, at most {MAX_SOURCE} are accepted")
        self._environment = _environment()
        self._lock = threading.Lock()
        self._template: jinja2.Template = self._guarded(lambda: self._environment.from_string(source))

    def render(self, variables: Mapping[str, Any], input_characters: int) -> str:
        """Render with these variables.

        input_characters : length of all that the variables hold; a long chat may cost more than a short one.

        Raises TemplateRefusal with the template's own message when it calls ``raise_exception``, TemplateError when
        it is faulty, unsafe or does not come to an end.
        """
        with self._lock:
            self._environment.meter = Meter(BASE_ALLOWANCE + ALLOWANCE_PER_CHARACTER * input_characters)
            return self._guarded(lambda: self._template.render(variables))

    @staticmethod
    def _guarded(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except _Refusal as error:
            raise TemplateRefusal(f"the model's chat template refuses these messages: {error}") from error
        except SecurityError as error:
            raise TemplateError(f"the model's chat template is unsafe, it tries {error}; refused") from error
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the model's chat template is faulty in line {error.lineno}: {error.message}") from error
        except _Overrun as error:
            raise TemplateError(f"the model's chat template was stopped: {error}") from error
        except Exception as error:  # foreign code can raise anything
            raise TemplateError(f"the model's chat template fails: {error or type(error).__name__}") from error
