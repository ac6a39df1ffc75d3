"""``python -m fuzz TARGET [-libFuzzer_option=...] [FOLDER]``: goes on until it is stopped, or -max_total_time.

New inputs go into the folder, if there is one. ``python -m fuzz TARGET FILE`` tries one input again, and
``python -m fuzz TARGET keep FOLDER`` makes a folder of inputs the corpus in the repository.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from fuzz.target import NAMES, judge, keep, kept, load

INSTRUMENTED = ["ramforge_core", "ramforge_tokenizer_bpe", "ramforge_tokenizer_spm", "jinja2"]
INSTRUMENTED_SECONDS = 4.0
"""Counting what is covered makes Python about four times slower."""


def main(name: str, options: list[str]) -> None:
    if options[:1] == ["keep"]:
        keep(name, Path(options[1]))
        return
    files = [path for path in map(Path, options) if path.is_file()]
    if files:
        target = load(name)
        for file in files:
            judge(target.check, file.read_bytes())
        return
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED), tempfile.TemporaryDirectory() as work:
        target = load(name)
        for n, known in enumerate([*target.seeds(), *kept(name)]):
            (Path(work) / str(n)).write_bytes(known)
        defaults = ["-timeout=60", "-rss_limit_mb=2000", "-max_len=4096", f"-artifact_prefix={name}-"]
        atheris.Setup(
            [sys.argv[0], *defaults, *options, work],
            lambda data: judge(target.check, data, INSTRUMENTED_SECONDS),
        )
        atheris.Fuzz()


if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
    sys.exit(f"{__doc__}\nTargets: {', '.join(NAMES)}")
main(sys.argv[1], sys.argv[2:])
