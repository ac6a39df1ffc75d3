"""What a chat template may spend: work, memory and time.

Jinja2's sandbox keeps foreign code away from Python's insides, but not from running for ever or filling the memory.
`Meter` does. What a step costs is foreseen in `COSTS`, by the name of the method, filter or operator, wherever a small
input can make a large or slow result; all others are linear in values that have been measured.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from string import Formatter
from typing import Any, NoReturn

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Cycler, Namespace

BASE_ALLOWANCE = 20_000_000
"""Units of work that a render may spend, to which `ALLOWANCE_PER_CHARACTER` of the input is added."""
ALLOWANCE_PER_CHARACTER = 100
BASE_LENGTH = 2_000_000
"""Characters that one value may unfold to, to which `LENGTH_PER_CHARACTER` of the input is added."""
LENGTH_PER_CHARACTER = 20
STEP_COST = 100
"""Units for a loop's turn or a call; each character that is made costs one more."""
GLANCE_COST = 5
"""Units for a comparison or an attribute."""
ELEMENT_COST = 20
"""Units for an element of a list or mapping that is looked at."""
MAX_SECONDS = 10.0
MAX_INTEGER_BITS = 4096
LONG_INTEGER_BITS = 60
"""Longer integers can be made to share a hash, so that a mapping of them takes quadratic time."""
LONG_INTEGER_COST = 2000
MAX_PRECISION = 100
MAX_JSON_INDENT = 32
NUMBER_WIDTH = 330
"""Characters that a number takes in a format without width: 1e308 has 309 digits before the point."""
SQUARE_SHARE = 64
"""How many of the innermost steps of a quadratic function are one unit."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
PERCENT_FIELD = re.compile(
    r"%(?:\([^()]*\))?[#0\- +]*(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+)?)?[hlL]?.", re.DOTALL
)
NESTED_KEY = re.compile(r"%\([^)]*\(")

Cost = Callable[["Meter", Sequence[Any], Mapping[str, Any]], None]


class Overrun(TemplateRuntimeError):
    """The meter ran out."""


class Meter:
    """What one render has left to spend.

    Every value that a template makes is measured, so that nothing it holds ever unfolds to more than ``longest``
    characters (a list that holds a list twice, sixty deep, takes no memory until it is printed). The sandbox makes
    values immutable, except namespaces, and those may not hold each other; so a value never grows once it is measured.
    Results that would be large are refused before they are made.
    """

    def __init__(self, input_characters: int) -> None:
        self.longest = BASE_LENGTH + LENGTH_PER_CHARACTER * input_characters
        self.left = BASE_ALLOWANCE + ALLOWANCE_PER_CHARACTER * input_characters
        self.deadline = time.monotonic() + MAX_SECONDS

    def overrun(self, what: str) -> NoReturn:
        raise Overrun(f"it {what}")

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0 or time.monotonic() > self.deadline:
            self.overrun("does not come to an end in the work that a chat template may take")

    def expect(self, n_characters: int) -> None:
        """Refuse a result before it is made."""
        if n_characters > self.longest:
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
                if max(abs(item.start), abs(item.stop)).bit_length() > LONG_INTEGER_BITS:
                    self.overrun("counts to an absurdly large number")
            elif isinstance(item, Namespace):
                if item is not value:
                    self.overrun("nests namespaces")
                parts = tuple(getattr(item, "_Namespace__attrs").values())  # noqa: B009 (a private name)
            elif isinstance(item, Cycler):
                parts = item.items
            elif isinstance(item, int) and item.bit_length() > LONG_INTEGER_BITS:
                total += self._long_integer(item)
            total += len(parts)
            self.expect(total)
            if parts:
                self.spend(ELEMENT_COST * len(parts))
                stack.extend(parts)
        return total

    def _long_integer(self, value: int) -> int:
        if value.bit_length() > MAX_INTEGER_BITS:
            self.overrun("makes an absurdly large number")
        self.spend(LONG_INTEGER_COST)
        return value.bit_length() // 3

    def before(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Charge a call, filter or operator, and foresee how long it takes and how long its result may be.

        args : the object first that a method belongs to or a filter works on.
        """
        self.spend(STEP_COST)
        for cost in COSTS.get(name, ()):
            cost(self, args, kwargs)

    def after(self, result: object) -> None:
        """Measure and charge a result."""
        self.size(result)
        if isinstance(result, (str, bytes)):
            self.spend(len(result))

    def square(self, n: int, m: int) -> None:
        """Charge ``n`` times ``m`` innermost steps."""
        self.spend(n * m // SQUARE_SHARE)


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _product(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The result may be as long as the product of all that is given."""
    product = 1
    for value in (*args, *kwargs.values()):
        product *= max(1, abs(value)) if isinstance(value, int) else meter.size(value)
    meter.expect(product)


def _repeat(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not all(isinstance(value, (int, float)) for value in args):
        _product(meter, args, kwargs)


def _power(meter: Meter, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    base, exponent = args
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and base.bit_length() * abs(exponent) > MAX_INTEGER_BITS:
        meter.overrun("makes an absurdly large number")


def _replace(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    text = str(_argument(args, kwargs, 0, "s"))
    old, new = (str(_argument(args, kwargs, n, name)) for n, name in ((1, "old"), (2, "new")))
    meter.expect(len(text) + text.count(old) * len(new))


def _percent_widths(meter: Meter, form: str) -> list[str]:
    if NESTED_KEY.search(form):
        meter.overrun("formats a field with a name that holds brackets")
    fields = [(m["width"] or "0", m["precision"] or "0") for m in PERCENT_FIELD.finditer(form)]
    return [number for field in fields for number in field]


def _brace_widths(form: str) -> list[str]:
    specs = [spec for _, name, spec, _ in Formatter().parse(form) if name is not None]
    return [number for spec in specs for number in ("0", *re.findall(r"\d+|\{", spec or ""))]


def _format(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any], *, percent: bool) -> None:
    """Any field may show any argument, and the widths and precisions of all fields add up."""
    form = args[0]
    if not isinstance(form, str):
        return
    n_fields = form.count("%" if percent else "{")
    meter.spend(ELEMENT_COST * n_fields)
    widths = _percent_widths(meter, form) if percent else _brace_widths(form)
    if not all(number.isdecimal() and len(number) < 10 for number in widths):
        meter.overrun("formats a field of an absurd or unknown width")
    values = (*args[1:], *kwargs.values())
    shown = sum(map(meter.size, values)) + NUMBER_WIDTH + 3 * _most_digits(values)
    meter.expect(len(form) + sum(map(int, widths)) + n_fields * shown)


def _most_digits(values: Sequence[Any]) -> int:
    """Decimal digits of the longest integer that a field may show; three times that in binary, with commas 4."""
    stack, most = list(values), 0
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            most = max(most, item.bit_length() // 2)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return most


def _format_percent(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    _format(meter, args, kwargs, percent=True)


def _format_either(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The method ``format`` reads braces and the filter of the same name percent signs."""
    _format(meter, args, kwargs, percent=True)
    _format(meter, args, kwargs, percent=False)


def _round(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    precision = _argument(args, kwargs, 1, "precision")
    if isinstance(precision, (int, float)) and not abs(precision) <= MAX_PRECISION:
        meter.overrun(f"rounds to more than {MAX_PRECISION} places")


def _json(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    indent = _argument(args, kwargs, 2, "indent")
    if (len(indent) if isinstance(indent, str) else indent or 0) > MAX_JSON_INDENT:
        meter.overrun(f"indents JSON by more than {MAX_JSON_INDENT} characters")


def _sum(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if isinstance(_argument(args, kwargs, 2, "start"), (list, tuple)):  # copied at each step
        size = meter.size(args[0])
        meter.square(size, size)


def _search(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Python searches backwards, and strips, in a time that is the product of both lengths."""
    sought = _argument(args, kwargs, 1, "sep") or kwargs.get("chars")
    if isinstance(sought, str):
        meter.square(len(str(args[0])), len(sought))


def _square(meter: Meter, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    length = len(str(args[0])) if args else 0
    meter.square(length, length)


def _split(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    text, separator = args[0], _argument(args, kwargs, 1, "sep")
    n_parts = text.count(separator) if isinstance(separator, str) else len(text) // 2
    most = _argument(args, kwargs, 2, "maxsplit")
    meter.spend(ELEMENT_COST * (min(n_parts, most) if isinstance(most, int) and most >= 0 else n_parts))


def _lines(meter: Meter, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    if args and isinstance(args[0], str):
        meter.spend(ELEMENT_COST * sum(map(args[0].count, LINE_ENDS)))


def _pieces(meter: Meter, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    """Takes the value apart completely."""
    meter.spend(ELEMENT_COST * meter.size(args[0]) if args else 0)


def _characters(meter: Meter, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    """A text where elements are wanted becomes one object for each character."""
    if args and isinstance(args[0], str):
        meter.spend(ELEMENT_COST * len(args[0]))


def _join(meter: Meter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The method belongs to the separator, the filter to the elements."""
    given = [*args[:2], *(value for name, value in kwargs.items() if name != "attribute")]
    _product(meter, given, {})
    if all(isinstance(value, str) for value in given):
        meter.spend(ELEMENT_COST * max(map(len, given)))


COSTS: dict[str, tuple[Cost, ...]] = {
    "*": (_repeat,),
    "**": (_power,),
    "%": (_format_percent,),
    "format": (_format_either,),
    "format_map": (_format_either,),
    "replace": (_replace,),
    "join": (_join,),
    "indent": (_product, _lines),
    "wordwrap": (_product, _square),
    "urlize": (_product, _square),
    "tojson": (_product, _json),
    "batch": (_product, _characters),
    "slice": (_product, _characters),
    "round": (_round,),
    "sum": (_sum, _characters),
    "striptags": (_square,),
    "split": (_split,),
    "rsplit": (_search, _split),
    "splitlines": (_lines,),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "expandtabs", "translate", "xmlattr"), (_product,)),
    **dict.fromkeys(("rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip", "trim"), (_search,)),
    **dict.fromkeys(("title", "wordcount", "urlencode", "pprint"), (_pieces,)),
    **dict.fromkeys(("list", "sort", "unique", "groupby", "map", "select", "reject"), (_characters,)),
    **dict.fromkeys(("selectattr", "rejectattr"), (_characters,)),
}
"""What to charge before a method, filter or operator of that name is run."""
