"""The sandbox of chat templates: field case D01, and templates that do not end or fill the memory."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest

from ramforge_core.errors import TemplateError
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_what_is_stopped_takes_no_memory():
    sources = [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    ]
    code = f"""
import re, sys
from ramforge_core.errors import TemplateError
from ramforge_core.template_sandbox import SandboxedTemplate
for source in {sources!r}:
    try:
        SandboxedTemplate(source).render({{}}, 0)
    except TemplateError:
        continue
    sys.exit("not stopped: " + source)
print(re.search("VmHWM: *(.*) kB", open("/proc/self/status").read().replace("\\t", " "))[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 100 << 10
