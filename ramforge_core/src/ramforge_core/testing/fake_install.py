"""A distribution that looks installed, for tests of whatever reads entry points: a folder to put on ``sys.path``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path


def fake_install(
    folder: Path,
    distribution: str,
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str],
    *,
    version: str = "0.1.0",
    requires: Sequence[str] = (),
) -> Path:
    """Write a distribution into ``folder``, which may hold others, and return the folder.

    entry_points : group to name to value, ``{"ramforge.quants": {"q4_x": "my_module"}}``.
    modules : module name to source text.
    requires : requirements, as in ``Requires-Dist``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    head = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
    head += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(head) + "\n", encoding="utf-8")
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in names.items())])
        for group, names in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    importlib.invalidate_caches()
    return folder
