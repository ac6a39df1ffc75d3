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
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from functools import wraps
from typing import Any, ClassVar, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ramforge_core.errors import TemplateError

MAX_SOURCE = 1 << 20
"""Characters in a template. The longest one in circulation has about 20,000."""
BASE_ALLOWANCE = 20_000_000
"""Units of work that a render may spend, to which `ALLOWANCE_PER_CHARACTER` of the input is added."""
ALLOWANCE_PER_CHARACTER = 100
STEP_COST = 100
"""Units for a loop's turn or a call; each character that is made costs one more."""
ELEMENT_COST = 20
"""Units for an element of a list or mapping that is looked at."""
MAX_SECONDS = 10.0
MAX_INTEGER_BITS = 4096
MAX_FORMAT_FIELD = re.compile(r"[{%][^{}%]*(?:\*|\d{7,}|:[^{}]*\{)")
"""A format string that asks for a field of a million characters, or for a width that only an argument tells."""
GROWING = frozenset(
    {"join", "center", "ljust", "rjust", "zfill", "expandtabs", "translate", "indent", "wordwrap", "tojson"}
    | {"batch", "slice", "xmlattr", "urlize"}
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
    characters (a list that holds a list twice, sixty deep, takes no memory until it is printed). The sandbox makes
    values immutable, except namespaces, and those may not hold each other; so a value never grows once it is measured.
    Results that would be large are refused before they are made.
    """

    def __init__(self, allowance: int) -> None:
        self.allowance = allowance
        self.left = allowance
        self.deadline = time.monotonic() + MAX_SECONDS

    def overrun(self, what: str) -> NoReturn:
        raise _Overrun(f"it {what}")

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0 or time.monotonic() > self.deadline:
            self.overrun("does not come to an end in the work that a chat template may take")

    def expect(self, n_characters: int) -> None:
        """Refuse a result before it is made."""
        if n_characters > self.allowance:
            self.overrun("makes a value that is larger than a chat prompt can be")

    def size(self, value: object) -> int:
        """Characters and elements that a value unfolds to, at least 1."""
        total, stack = 1, [value]
        while stack:
            item = stack.pop()
            parts: Sequence[object] = ()
            if isinstance(item, (str, bytes)):
                total += len(item)
            elif isinstance(item, Mapping):
                parts = (*item.keys(), *item.values())
            elif isinstance(item, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)):
                parts = tuple(item)
            elif isinstance(item, range):
                total += len(item) * len(str(item.stop))
            elif isinstance(item, Namespace):
                if item is not value:
                    self.overrun("nests namespaces")
                parts = tuple(getattr(item, "_Namespace__attrs").values())  # noqa: B009 (a private name)
            elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
                self.overrun("makes an absurdly large number")
            total += len(parts)
            self.expect(total)
            if parts:
                self.spend(ELEMENT_COST * len(parts))
                stack.extend(parts)
        return total

    def before(self, name: str, operands: Sequence[object]) -> None:
        """Foresee how long the result of a call, filter or operator may be."""
        self.spend(STEP_COST)
        first = operands[0] if operands else None
        if name == "replace" and len(operands) >= 3:
            text, old, new = map(str, operands[:3])
            self.expect(len(text) + text.count(old) * len(new))
        elif name in ("format", "format_map", "%") and isinstance(first, str):
            if MAX_FORMAT_FIELD.search(first):
                self.overrun("formats a field of an absurd or unknown width")
            self.expect(
                len(first) + (first.count("{") + first.count("%")) * sum(map(self.size, operands[1:]))
            )
        elif name in GROWING or (name == "*" and not all(isinstance(o, (int, float)) for o in operands)):
            product = 1
            for operand in operands:
                product *= max(1, abs(operand)) if isinstance(operand, int) else self.size(operand)
            self.expect(product)
        elif name == "**" and all(isinstance(o, int) for o in operands):
            base, exponent = (abs(int(str(o))) for o in operands)
            if base.bit_length() * exponent > MAX_INTEGER_BITS:
                self.overrun("makes an absurdly large number")

    def after(self, result: object) -> None:
        """Measure and charge a result."""
        self.size(result)
        if isinstance(result, (str, bytes)):
            self.spend(len(result))


class _Metered(NodeTransformer):
    """Puts the meter where Jinja2 has no hook for it: loops, ``~`` and literals."""

    @staticmethod
    def _call(name: str, args: list[Any], at: nodes.Node) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)
        call.set_lineno(at.lineno)
        return call

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

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        self.generic_visit(node)
        if isinstance(node.target, nodes.NSRef):
            node.node = self._call("hold", [node.node], node)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return self._call("literal", [node], node) if node.ctx == "load" else node


class _Generation(Extension):
    """The block ``{% generation %}``: marks the assistant's text for training, means nothing here."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

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

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        args = tuple(map(_settled, args))
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
        return value  # measured as the result of a call

    def hold(self, value: object) -> object:
        if isinstance(value, Namespace):
            self.meter.overrun("nests namespaces")
        return value

    def concatenate(self, *parts: object) -> str:
        return "".join(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:
        held, n_characters = [], 0
        for part in parts:
            n_characters += len(part)
            self.meter.expect(n_characters)
            held.append(part)
        self.meter.spend(n_characters)
        return "".join(held)


def _settled(value: Any) -> Any:
    """A list in place of an iterator, which cannot be measured. Jinja2's own ``loop`` stays what it is."""
    return list(value) if hasattr(value, "__next__") and type(value).__module__ == "builtins" else value


def _metered_filter(environment: _Environment, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps Jinja2's marks about which context a filter wants
    def run(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_settled, args))
        first = 0 if getattr(function, "jinja_pass_arg", None) is None else 1  # that one is a context
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
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


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
        environment.meter.spend(STEP_COST + environment.meter.size(value))
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
            raise TemplateError(
                f"the chat template has {len(source)} characters, at most {MAX_SOURCE} are accepted"
            )
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
            return str(self._guarded(lambda: self._template.render(variables)))

    @staticmethod
    def _guarded(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except _Refusal as error:
            raise TemplateRefusal(f"the model's chat template refuses these messages: {error}") from error
        except SecurityError as error:
            raise TemplateError(f"the model's chat template is unsafe, it tries {error}; refused") from error
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template is faulty in line {error.lineno}: {error.message}"
            ) from error
        except _Overrun as error:
            raise TemplateError(f"the model's chat template was stopped: {error}") from error
        except Exception as error:  # foreign code can raise anything
            raise TemplateError(
                f"the model's chat template fails: {error or type(error).__name__}"
            ) from error
