"""The sandbox of chat templates: field case D01, and templates that do not end or fill the memory."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

import pytest

from ramforge_core.errors import OutOfMemoryError, TemplateError
from ramforge_core.template_sandbox import SandboxedTemplate


def text(source):
    variables = {
        "messages": [{"role": "user", "content": "Hi"}],
        "strftime_now": lambda style: datetime.now().strftime(style),
    }
    return SandboxedTemplate(source).render(variables, 6)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__.os.mkdir('PLACE') }}",
        "{{ cycler.__init__.__globals__.os.mkdir('PLACE') }}",
        "{{ strftime_now.__globals__['__builtins__']['open']('PLACE', 'w') }}",
        "{{ self.__init__.__globals__ }}",
        "{% for k in messages[0].__class__.__base__.__subclasses__() %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ (5).to_bytes(2000000000, 'big') }}",
        "{{ 'x'.encode('idna') }}",
        "{{ 'x' | attr('encode') }}",
    ],
)
def test_d01_a_template_cannot_leave_the_sandbox(source, tmp_path):
    place = tmp_path / "made"
    with pytest.raises(TemplateError, match="unsafe"):
        text(source.replace("PLACE", str(place)))
    assert not place.exists()


@pytest.mark.parametrize(
    "source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends '/etc/passwd' %}"]
)
def test_other_files_are_out_of_reach(source):
    with pytest.raises(TemplateError, match="no loader"):
        text(source)


DOUBLING = (
    "{% set ns = namespace(v=START) %}{% for i in range(64) %}{% set ns.v = STEP %}{% endfor %}"
    "{{ ns.v | length }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if i < 0 %}{% endfor %}" * 20,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 7 ** 9999999 }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ '%10000000000s' % 1 }}",
        "{{ '%*s' % (10000000000, 1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 10) }}",
        "{{ '{x:>10000000000}'.format_map({'x': 1}) }}",
        "{{ 'a\nb' | indent(10 ** 10) }}",
        "{{ [1, [2]] | tojson(indent=10 ** 10) }}",
        "{{ range(99999) | join('x' * 9999) }}",
        "{{ range(99999) | map('string') | join('x' * 9999) }}",
        "{{ ('x' * 9999).join(range(99999) | map('string')) }}",
        "{{ range(99999) | map('center', 99999) | list }}",
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
        "{{ 'x' | batch(10 ** 10, 'y') | list }}",
        DOUBLING.replace("START", "'a'").replace("STEP", "ns.v + ns.v"),
        DOUBLING.replace("START", "'a'").replace("STEP", "ns.v ~ ns.v"),
        DOUBLING.replace("START", "'a'").replace("STEP", "ns.v * 2"),
        DOUBLING.replace("START", "'a'").replace("STEP", "'%s%s' % (ns.v, ns.v)"),
        DOUBLING.replace("START", "'a'").replace("STEP", "'{0}{0}'.format(ns.v)"),
        DOUBLING.replace("START", "[1]").replace("STEP", "[ns.v, ns.v]"),
        DOUBLING.replace("START", "[1]").replace("STEP", "ns.v + ns.v"),
        DOUBLING.replace("START", "[1]").replace("STEP", "{'a': ns.v, 'b': ns.v}"),
        DOUBLING.replace("START", "[1]").replace("STEP", "namespace(a=ns.v, b=ns.v)"),
        DOUBLING.replace("START", "3").replace("STEP", "ns.v * ns.v").replace(" | length", ""),
        "{% set x = 'a' * 9999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns, ns] | string }}",
        "{% set ns = namespace(v='a') %}{% for i in range(64) %}{% set x %}{{ ns.v }}{{ ns.v }}{% endset %}"
        "{% set ns.v = x %}{% endfor %}",
        "a" * 2_000_000,
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ lipsum(n=100000) }}",
    ],
    ids=range(39),
)
def test_a_template_that_does_not_end_or_blows_up_is_stopped(source):
    with pytest.raises(TemplateError):
        text(source)


HOSTILE = [
    # widths and precisions of many fields, each of them modest
    "{{ (('{0:>999999}') * 5000).format('x') | length }}",
    "{{ ('{:.999999f}' * 50).format(*([1.5] * 50)) }}",
    "{{ ('{a:099999d}' * 50).format_map({'a': 1}) }}",
    "{{ ('{0:{1}}' * 50).format(1, 999999) }}",
    "{{ ('{0:b}' * 300000).format(2 ** 2000) }}",
    "{{ (('%(a)999999d') * 5000) % {'a': 1} }}",
    "{{ (('%(a)999999d') * 5000) | format(a=1) }}",
    "{{ ('%(a(b))999999d' * 50) % {'a(b)': 1} }}",
    "{{ ('%.999999f' * 50) % ([1.5] * 50) }}",
    "{{ ('%.*f' * 50) % ((999999, 1.5) * 50) }}",
    "{{ ('%(a)f' * 300000) % {'a': 1e308} }}",
    # numbers
    "{{ 1.5 | round(200000000, 'ceil') }}",
    "{{ 1.5 | round(precision=200000000, method='floor') }}",
    "{{ 5 | round(-200000000) }}",
    "{{ 7 ** (10 ** 9) }}",
    "{{ ([2 ** 2000] * 400000) | string | length }}",
    "{{ range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) | unique | list | length }}",
    # one argument by another name or in another order
    "{{ ('x' * 99999) | replace(new='y' * 99999, old='x') }}",
    "{{ '\t'.expandtabs(tabsize=10 ** 9) }}",
    "{{ 'x'.zfill(10 ** 9) }}",
    "{{ 'x'.rjust(10 ** 9, 'y') }}",
    "{{ [1] | batch(10 ** 9, 2) | list }}",
    "{{ [1] | slice(10 ** 9) | list }}",
    "{{ ([[[[[1]]]]] * 10000) | tojson(indent=90) }}",
    # quadratic time
    "{{ ('<!---->' * 220000) | striptags }}",
    "{{ ('<!---->' * 220000) | escape | attr('striptags')() }}",
    "{{ ('aaaaaaaaaa' * 180000) | wordwrap(1) }}",
    "{{ ('http://' * 100000) | urlize }}",
    "{{ ('a' * 900000).rfind('b' ~ 'a' * 500000) }}",
    "{{ ('a' * 900000).rsplit('b' ~ 'a' * 500000) }}",
    "{{ ('a' * 900000).strip('b' * 900000 ~ 'a') }}",
    "{{ ('a' * 900000) | trim('b' * 900000 ~ 'a') }}",
    "{{ ([[1]] * 40000) | sum(start=[]) | length }}",
    # one object for each character
    "{{ ('漢漢漢漢漢漢漢漢漢' * 200000) | list | length }}",
    "{{ ('漢漢漢漢漢漢漢漢漢' * 200000) | map('upper') | list | length }}",
    "{{ ('漢 漢 漢 漢 漢 漢' * 160000).split() | length }}",
    "{{ '{}'.format(*('漢漢漢漢漢漢漢漢漢' * 200000)) }}",
    "{{ ('漢-漢-漢-漢-漢-漢-漢' * 130000) | title | length }}",
    # many large values at once
    "{% set x = 'aaaaaaaaaa' * 180000 %}{{ (" + "x[1:]," * 3000 + ") | length }}",
    "{% set x = 'aaaaaaaaaa' * 180000 %}{{ (" + "~".join(["x"] * 3000) + ") | length }}",
    "{% set ns = namespace(v=1) %}{% for i in range(64) %}{% set ns.v = cycler(ns.v, ns.v).items %}{% endfor %}"
    "{{ ns.v == 1 }}",
    # sources that are costly to compile
    "{{ (" + "a<b," * 50_000 + ") }}",
    "{{ a }}" * 30_000,
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space and reads the peak from /proc")
def test_what_is_stopped_takes_little_memory_and_time():
    sources = [
        *HOSTILE,
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    ]
    code = """
import json, re, resource, sys, time
from ramforge_core.errors import OutOfMemoryError, TemplateError
from ramforge_core.template_sandbox import SandboxedTemplate
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for source in json.load(sys.stdin):
    start = time.process_time()
    try:
        SandboxedTemplate(source).render({}, 0)
    except OutOfMemoryError as error:
        sys.exit(f"{error}: {source[:99]}")
    except TemplateError as error:
        if "was stopped" not in str(error):
            sys.exit(f"{error}: {source[:99]}")
    else:
        sys.exit("not stopped: " + source[:99])
    if time.process_time() - start > 4:
        sys.exit("too late: " + source[:99])
print(re.search("VmHWM: *(.*) kB", open("/proc/self/status").read().replace("\\t", " "))[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(sources), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150 << 10


def test_steps_inside_a_filter_are_counted(monkeypatch):
    monkeypatch.setattr("ramforge_core.template_meter.MAX_SECONDS", 0.3)
    for source in (
        "{{ range(99999) | map(attribute='real.' * 300000 ~ 'real') | list | length }}",
        "{{ range(99999) | select('in', range(99999) | list | reverse | list) | list | length }}",
    ):
        with pytest.raises(TemplateError, match="does not come to an end"):
            text(source)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("{{ 'On 20240101999999: %s, {:>3}' % 'x' }}", "On 20240101999999: x, {:>3}"),
        ("{{ '99999999%% of {:>3} {{{}}}'.format(1, 'x') }}", "99999999%% of   1 {x}"),
        ("{{ '%5.1f|%-4s|%03d|%%99999999d' % (1.25, 'a', 7) }}", "  1.2|a   |007|%99999999d"),
        ("{{ 1.256 | round(2) }} {{ 1.2 | round(method='ceil') }} {{ 149 | round(-2) }}", "1.26 2.0 100"),
        ("{{ 18446744073709551615 }} {{ {'maximum': 2 ** 64} | tojson(indent=2) }}", None),
        ("{{ ([1, 2] | sum) + ([[1], [2]] | sum(start=[]) | length) }}", "5"),
        ("{{ 'a b c'.rsplit(' ', 1)[0] }}{{ 'x--'.strip('-') }}{{ 'abab'.rfind('ab') }}", "a bx2"),
        ("{{ ('word ' * 2000) | wordwrap(40) | length > 9000 }}{{ [3, 1] | sort | join('-') }}", "True1-3"),
        (
            "{{ True ** 2 }}{{ 2 ** -1 }}{{ 'ab' is in 'cab' }}{{ 1 < 2 < 3 }}{{ not 1 == 2 }}",
            "10.5TrueTrueTrue",
        ),
    ],
)
def test_ordinary_formats_numbers_and_texts_are_let_through(source, want):
    assert text(source) == want or want is None


def test_an_error_without_text_is_told_by_its_name():
    def fail(error):
        raise error

    template = SandboxedTemplate("{{ fail() }}")
    with pytest.raises(TemplateError, match=r"fails: ArithmeticError$"):
        template.render({"fail": lambda: fail(ArithmeticError())}, 0)
    with pytest.raises(OutOfMemoryError, match="chat template"):
        template.render({"fail": lambda: fail(MemoryError())}, 0)


def test_a_long_reason_is_cut():
    with pytest.raises(TemplateError) as error:
        text("{{ raise_exception('x' * 1000000) }}")
    assert len(str(error.value)) < 600
