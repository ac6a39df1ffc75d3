"""What holds the distribution together: entry points and copies of the shared headers."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import ramforge_core
import ramforge_quant_bits

SOURCES = Path(ramforge_quant_bits.__file__).parent
HEADERS = Path(ramforge_core.__file__).parent / "include"


def test_entry_points_are_the_names() -> None:
    ours = {e.name for e in entry_points(group="ramforge.quants") if e.value == "ramforge_quant_bits"}
    assert ours == {f.name for f in ramforge_quant_bits.ramforge_quant_formats()}


def test_a_python_and_a_c_file_for_each_format() -> None:
    for f in ramforge_quant_bits.ramforge_quant_formats():
        assert (SOURCES / f"{f.name}.py").is_file()
        assert (SOURCES / f"{f.name}.c").is_file()


def test_headers_are_copies() -> None:
    copies = sorted(SOURCES.glob("ramforge_*.h"))
    assert "ramforge_kernel.h" in {c.name for c in copies}
    for copy in copies:
        assert copy.read_bytes() == (HEADERS / copy.name).read_bytes(), (
            f"{copy} differs from the one in ramforge_core"
        )
