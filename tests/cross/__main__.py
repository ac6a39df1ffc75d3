"""``python -m cross [FORMAT ...]``: see the package."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cross import check, missing

if reason := missing():
    sys.exit(f"skipped: {reason}")
with tempfile.TemporaryDirectory() as folder:
    for line in check(Path(folder), sys.argv[1:]):
        print(line)
