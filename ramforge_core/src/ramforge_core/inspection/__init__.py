"""What ``ramforge inspect`` shows of a file: `inspect` gives the facts, `render` the text for people."""

from __future__ import annotations

from ramforge_core.inspection.facts import Inspection, inspect
from ramforge_core.inspection.text import render

__all__ = ["Inspection", "inspect", "render"]
