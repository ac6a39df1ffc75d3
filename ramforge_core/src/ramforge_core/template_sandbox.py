"""The sandbox that a model's chat template is rendered in.

A template comes out of a file that anybody may have made, so it is foreign code. Jinja2's immutable sandbox keeps it
away from Python's insides; `Meter` keeps it from running for ever or filling the memory. This module knows nothing of
messages or tokens; it and the meter are the only ones that import Jinja2: import them late.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
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

from ramforge_core.errors import OutOfMemoryError, TemplateError
from ramforge_core.template_meter import ELEMENT_COST, GLANCE_COST, STEP_COST, Meter, Overrun

MAX_SOURCE = 1 << 18
"""Characters in a template. The longest one in circulation has about 20,000."""
MAX_NODES = 20_000
"""Nodes of the syntax tree; compiling takes up to 10 KB for each. Templates have one for 8 characters or more."""
MAX_REASON = 500
"""Characters of an error's own text, which a template may choose, that are passed on."""
UNSAFE_METHODS = frozenset({"encode", "decode", "to_bytes", "from_bytes"})
"""Methods that a prompt has no use for; some codecs take quadratic time, and integers fill any number of bytes."""


class TemplateRefusal(TemplateError):
    """The template itself called ``raise_exception``."""


class _Refusal(jinja2.TemplateError):
    """What ``raise_exception`` raises inside Jinja2."""


class _Metered(NodeTransformer):
    """Puts the meter where Jinja2 has no hook for it: loops, comparisons, slices, ``*args``, ``~`` and literals."""

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

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        seen = nodes.And(self._call("glance", [], node), node)
        seen.set_lineno(node.lineno)
        return seen

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return self._call("sliced", [node], node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Call(self, node: Any) -> Any:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = self._call("elements", [node.dyn_args], node)
        return node

    visit_Filter = visit_Test = visit_Call

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
        if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_NODES:
            raise Overrun(f"it has more than {MAX_NODES} parts")
        _Metered().visit(tree)
        return tree

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # Jinja2 waits until the forbidden thing is used; a template that only tries is refused as well
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r}")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        unsafe = attr in UNSAFE_METHODS and isinstance(obj, (str, bytes, int, type))
        return not unsafe and super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.meter.spend(GLANCE_COST)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.meter.spend(GLANCE_COST)  # filters come here as well, for each part of a path and each element
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is __self:  # one of those below, which measure what they do
            return __obj(*args)  # without the variables of the loop, which Jinja2 adds
        args = tuple(map(_settled, args))
        operands = (owner, *args) if isinstance(owner, (str, bytes, list, dict, tuple)) else args
        __self.meter.before(getattr(__obj, "__name__", ""), operands, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        __self.meter.after(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.before(operator, (left, right), {})
        result = super().call_binop(context, operator, left, right)
        self.meter.after(result)
        return result

    def tick(self) -> bool:
        self.meter.spend(STEP_COST)
        return True

    def glance(self) -> bool:
        self.meter.spend(GLANCE_COST)
        return True

    def literal(self, value: object) -> object:
        self.meter.spend(STEP_COST)
        self.meter.after(value)
        return value

    def sliced(self, value: Any) -> Any:
        self.meter.spend(STEP_COST + len(value))  # a part of something that has been measured
        return value

    def elements(self, values: Any) -> Any:
        values = _settled(values)
        self.meter.spend(ELEMENT_COST * len(values))
        return values

    def hold(self, value: object) -> object:
        if isinstance(value, Namespace):
            self.meter.overrun("nests namespaces")
        return value

    def concatenate(self, *parts: object) -> str:
        n_characters = 0
        for part in parts:
            n_characters += self.meter.size(part)
            self.meter.expect(n_characters)
        text = "".join(map(str, parts))
        self.meter.spend(STEP_COST + len(text))
        return text

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
        environment.meter.before(name, args[first:], kwargs)
        result = function(*args, **kwargs)
        environment.meter.after(result)
        return result

    return run


def _metered_test(environment: _Environment, function: Any) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        environment.meter.spend(GLANCE_COST)
        return function(*args, **kwargs)

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
    environment.meter = Meter(0)

    @pass_context  # a finalizer that wants the context keeps the compiler from working out constants
    def finalize(_context: Context, value: object) -> object:
        environment.meter.spend(STEP_COST + environment.meter.size(value))
        return value

    environment.finalize = finalize
    environment.filters["tojson"] = _tojson
    for name, function in list(environment.filters.items()):
        environment.filters[name] = _metered_filter(environment, name, function)
    for name, test in list(environment.tests.items()):
        environment.tests[name] = _metered_test(environment, test)
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
        it is faulty, unsafe or does not come to an end, OutOfMemoryError when the machine has no memory for it.
        """
        with self._lock:
            self._environment.meter = Meter(input_characters)
            return str(self._guarded(lambda: self._template.render(variables)))

    @staticmethod
    def _guarded(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except _Refusal as error:
            raise TemplateRefusal(
                f"the model's chat template refuses these messages: {_reason(error)}"
            ) from error
        except SecurityError as error:
            raise TemplateError(
                f"the model's chat template is unsafe, it tries {_reason(error)}; refused"
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template is faulty in line {error.lineno}: {error.message}"
            ) from error
        except Overrun as error:
            raise TemplateError(f"the model's chat template was stopped: {error}") from error
        except MemoryError as error:
            raise OutOfMemoryError(
                "the memory does not suffice to render the model's chat template; free some, or use the model without "
                "its template"
            ) from error
        except Exception as error:  # foreign code can raise anything
            raise TemplateError(f"the model's chat template fails: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + "..."
