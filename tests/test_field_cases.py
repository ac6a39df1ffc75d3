"""docs/field-cases.md knows every field case that has tests, and names no test that is not there."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-J]\d\d) \|.*\| ([^|]*) \|$", re.MULTILINE)


def functions() -> dict[str, set[str]]:
    """Test functions by file name."""
    found = defaultdict(set)
    for folder in (ROOT / "tests", *ROOT.glob("*/tests"), *ROOT.glob("ramforge_plugins/*/tests")):
        for file in folder.glob("test_*.py"):
            found[file.name].update(
                re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            )
    return found


def cases(name: str) -> set[str]:
    return {case.upper() for case in re.findall(r"(?<=_)[a-jA-J]\d\d(?=_)", name)}


def test_the_page_and_the_tests_agree():
    found, listed = functions(), defaultdict(set)
    rows = dict(ROW.findall((ROOT / "docs/field-cases.md").read_text(encoding="utf-8")))
    for case, cell in rows.items():
        listed[case].update(re.findall(r"`(test_\w+\.py)`", cell))
    written = defaultdict(set)
    for file, names in found.items():
        for case in rows.keys() & {c for name in names for c in cases(name)}:  # f16 is a number format
            written[case].add(file)
    for case, files in listed.items():
        assert files <= written[case], case
        assert files or not written[case], f"{case} has tests, and the page does not name one"


CLAIMED = "ABCDEFGHIJ"


def test_every_open_case_is_a_test_or_a_reason(shared):
    """No case that users reported is forgotten: a test that has its id, or words that say why not."""
    text = (shared / "field-cases.md").read_text(encoding="utf-8")
    opened = {case for case in re.findall(r"^\| ([A-J]\d\d) \|", text, re.MULTILINE) if case[0] in CLAIMED}
    rows = dict(ROW.findall((ROOT / "docs/field-cases.md").read_text(encoding="utf-8")))
    assert len(opened) > 80
    assert not opened - rows.keys()
    for case in opened:
        assert "`test_" in rows[case] or rows[case].startswith("not yet: "), case
    for group in "ABCDEFGHI":
        assert all("`test_" in rows[case] for case in opened if case[0] == group)
