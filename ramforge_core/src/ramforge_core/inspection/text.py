"""Facts of a file as text for a terminal. Whatever the file wrote is escaped: it may hold control characters (A36)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ramforge_core.gguf import TensorInfo, type_label
from ramforge_core.inspection.facts import Inspection, TypeShare, value_facts
from ramforge_core.sizes import format_size

WIDTH = 100
"""Characters of a value that are shown; ``--json`` has the rest."""
TEMPLATE_LINES = 4


def render(inspection: Inspection) -> str:
    """All facts, section by section."""
    sections = [
        ("file", _file(inspection)),
        ("metadata", _metadata(inspection)),
        ("quantization", _quantization(inspection.types)),
        ("tokenizer", _tokenizer(inspection)),
        ("rope", _rope(inspection)),
        ("chat template", _template(inspection.chat_template)),
        (f"tensors ({len(inspection.gguf.tensors)})", _tensors(inspection.gguf.tensors.values())),
        ("support", [f"  {escape(line)}" for line in inspection.support.render().splitlines()]),
    ]
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections if lines)


def escape(text: str) -> str:
    r"""Text on one line that cannot act on a terminal: control and format characters become ``\n``, ``\x1b``, ..."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _cut(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 3]}..."


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows in columns; the last column is not padded."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _file(inspection: Inspection) -> list[str]:
    gguf = inspection.gguf
    rows = [
        (escape(shard.path), format_size(shard.nbytes), f"{shard.tensors} tensors")
        for shard in inspection.files
    ]
    lines = _table(rows)
    lines.append(
        f"  GGUF version {gguf.version}, alignment {gguf.alignment}, {format_size(gguf.nbytes)} in all"
    )
    name = "not named" if inspection.architecture is None else _cut(inspection.architecture)
    lines.append(f"  architecture {name}, {inspection.parameters} parameters")
    if inspection.tied_embeddings:
        lines.append("  tied embeddings: token_embd.weight is the head too, and counted once")
    if inspection.incomplete is not None:
        lines.append(f"  INCOMPLETE: {escape(inspection.incomplete)}")
    lines += [f"  warning: {escape(warning)}" for warning in inspection.warnings]
    return lines


def _metadata(inspection: Inspection) -> list[str]:
    metadata = inspection.gguf.metadata
    return _table((_cut(key), _value(value_facts(metadata, key))) for key in metadata)


def _value(facts: object) -> str:
    if isinstance(facts, str):
        return f'"{_cut(facts)}"'
    if isinstance(facts, dict) and "items" in facts:
        return f"{facts['items']} items ({facts['array_of']})"
    if isinstance(facts, dict):
        return f'"{_cut(facts["begins"])}" ({format_size(facts["text_bytes"])})'
    return _cut(json.dumps(facts, ensure_ascii=False))


def _quantization(shares: Iterable[TypeShare]) -> list[str]:
    return _table(
        (
            type_label(share.ggml_type),
            f"{share.tensors} tensors",
            "unknown size" if share.nbytes is None else format_size(share.nbytes),
            "" if share.share is None else f"{share.share:.1%}",
            "" if share.bits_per_weight is None else f"{share.bits_per_weight:.6g} bits per weight",
        )
        for share in shares
    )


def _tokenizer(inspection: Inspection) -> list[str]:
    facts = inspection.tokenizer
    if facts.model is None and not facts.tokens:
        return ["  none in this file"]
    ends = ", ".join(f"{token} {_cut(text)}" for token, text in facts.end_of_generation.items())
    rows = [
        ("model", _cut(facts.model or "not named")),
        ("pre", _cut(facts.pre or "none")),
        ("vocabulary", f"{facts.tokens} tokens, {facts.merges} merges"),
        *((f"{name} token", str(token)) for name, token in facts.special.items()),
        ("ends an answer", ends or "nothing known"),
        ("adds bos, eos", f"{_flag(facts.add_bos)}, {_flag(facts.add_eos)}"),
    ]
    return _table(rows)


def _flag(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "by default of the tokenizer"}[value]


def _rope(inspection: Inspection) -> list[str]:
    rope = inspection.rope
    rows = [
        ("scaling", _cut(rope.scaling)),
        ("factor", rope.factor),
        ("original context", rope.original_context),
        ("base", rope.base),
        ("dimensions", rope.dimensions),
    ]
    return _table((name, str(value)) for name, value in rows if value is not None)


def _template(template: str | None) -> list[str]:
    if template is None:
        return ["  none in this file"]
    lines = template.splitlines()
    shown = [f"  | {_cut(line)}" for line in lines[:TEMPLATE_LINES]]
    return [f"  {len(template)} characters, {len(lines)} lines, begins with", *shown]


def _tensors(infos: Iterable[TensorInfo]) -> list[str]:
    rows = [
        (
            _cut(info.name),
            info.type_name,
            " x ".join(map(str, info.shape)),
            f"file {info.file}",
            f"offset {info.offset}",
            "unknown size" if info.nbytes is None else f"{info.nbytes} bytes",
        )
        for info in infos
    ]
    return _table(rows)
