"""Plans as text for a terminal: only ASCII, lines of at most 100 characters where names allow it."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.planning.forecast import Speed
from ramforge_core.planning.plan import Outlook, Plan, StageShare
from ramforge_core.sizes import format_size

_BAR = 32
_LEGEND = "layers (# in memory, - read in every pass"
_CHART = 48


def render(plan: Plan) -> str:
    """All of a plan, section by section."""
    sections = [
        ("", _head(plan)),
        ("memory, with the context full", _memory(plan)),
        ("weights", _weights(plan)),
        ("experts", _experts(plan)),
        ("speed", _speed(plan)),
        ("other budgets", _budgets(plan)),
        ("measured", _measured(plan)),
        (_LEGEND + (", . when it is chosen)" if plan.experts else ")"), _stages(plan)),
    ]
    return "\n\n".join("\n".join(filter(None, [title, *lines])) for title, lines in sections if lines)


def render_sweep(points: Sequence[Outlook]) -> str:
    """Tokens per second against the budget, a bar for each budget."""
    most = max((p.decode.tokens_per_s for p in points if p.decode), default=0.0)
    lines = ["tokens/s by budget (decode; bound by d = disk, p = processor)"]
    for p in points:
        rate = p.decode.tokens_per_s if p.decode else 0.0
        bar = "#" * max(1, round(_CHART * rate / most)) if most else ""
        binds = p.decode.binds[0] if p.decode else "?"
        lines.append(f"  {format_size(p.ram_bytes):>9}  {_rate(rate):>6} {binds}  {bar}")
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    lines = [
        f"{_safe(plan.path)}: {_safe(plan.architecture)}, {format_size(plan.weight_bytes)} of weights",
        f"budget {format_size(plan.ram_bytes)}, context {plan.context} of {plan.trained_context} tokens",
    ]
    if plan.kv_bytes_per_token is not None:
        lines.append(f"KV cache {plan.kv_type}, {format_size(plan.kv_bytes_per_token)} per token")
    if plan.backend is not None:
        threads = f"{plan.threads} thread{'' if plan.threads == '1' else 's'}"
        lines.append(f"backend {plan.backend} ({plan.isa}), {threads}")
    return [*lines, plan.note] if plan.note else lines


def _memory(plan: Plan) -> list[str]:
    rows = [*plan.memory.items(), ("total", plan.total_bytes)]
    lines = [f"  {name:<16}{format_size(n):>10}" for name, n in rows if n or name == "total"]
    if plan.allotment is not None:
        start = plan.peak_bytes(min(256, plan.context), min(64, plan.chunk_tokens))
        lines.append(f"  The cache grows with the text: a short answer peaks at {format_size(start)}.")
    return lines


def _weights(plan: Plan) -> list[str]:
    rows = [("in memory", plan.pinned_bytes, ""), ("read per pass", plan.streamed_bytes, "")]
    if plan.reads_per_pass:
        each = format_size(plan.read_bytes_per_token / plan.reads_per_pass)
        rows[1] = (*rows[1][:2], f"  {plan.reads_per_pass} reads of about {each}")
    if plan.by_row_bytes:
        rows.append(("read by row", plan.by_row_bytes, "  token embeddings"))
    lines = [f"  {name:<16}{format_size(n):>10}{more}" for name, n, more in rows]
    if plan.read_bytes_per_token:
        lines.append(f"  {format_size(plan.read_bytes_per_token)} are read per decoded token.")
    else:
        lines.append("  Everything is in memory: nothing is read after loading.")
    return lines


def _experts(plan: Plan) -> list[str]:
    shares = plan.experts
    if shares is None:
        return []
    kept, used = [a.kept for a in shares.layers], max(a.op.chosen for a in shares.layers)
    each, few, most = shares.layers[0].op.experts, min(kept), max(kept)
    lines = [
        f"  {format_size(shares.expert_bytes)} in all, {format_size(shares.slot_bytes)} each; a token uses {used} "
        f"of {each} in {len(kept)} layers",
        f"  each layer keeps {few if few == most else f'{few} to {most}'}, those that were chosen most of late",
        f"  A token reads {shares.expected_misses(1):.1f} ({format_size(shares.expected_bytes(1))}) "
        "if the router has no favourites, fewer if it has.",
    ]
    if few < used:
        enough = plan.ram_bytes + sum(max(0, used - n) for n in kept) * shares.slot_bytes
        lines += [
            "  That is fewer than a token uses: a cache of what came last would hit nothing, so only",
            f"  favourites are kept. From {format_size(enough)} on, and --ctx {plan.context}, a layer keeps {used}.",
        ]
    return lines


def _speed(plan: Plan) -> list[str]:
    if plan.decode is None:
        return ["  unknown: " + ("the processor decides it" if plan.note else "nothing could be measured")]
    lines = [f"  decode   {_rate(plan.decode.tokens_per_s):>5} tokens/s, {_why(plan.decode)}"]
    if plan.decode_full is not None and plan.decode_full.tokens_per_s < 0.97 * plan.decode.tokens_per_s:
        lines.append(f"           {_rate(plan.decode_full.tokens_per_s):>5} tokens/s with the context full")
    if plan.prefill is not None:
        lines.append(f"  prefill  {_rate(plan.prefill.tokens_per_s):>5} tokens/s, {_why(plan.prefill)}")
        lines.append(f"           a pass takes up to {plan.chunk_tokens} prompt tokens")
    if plan.load_s is not None:
        lines.append(f"  loading  {plan.load_s:>5.1f} s from a cold disk")
    return lines


def _why(speed: Speed) -> str:
    sides = (("disk", speed.disk_s), ("processor", speed.compute_s))
    times = [f"{name} {t:.3g} s" for name, t in sides if t]
    return f"bound by the {speed.binds} (a pass: {', '.join(times)})"


def _budgets(plan: Plan) -> list[str]:
    lines = [
        f"  smallest that works   {format_size(plan.smallest_ram_bytes)}",
        f"  everything fits from  {format_size(plan.all_fits_ram_bytes)}",
    ]
    if plan.more is not None and plan.more.decode is not None and plan.decode is not None:
        factor = plan.more.decode.tokens_per_s / plan.decode.tokens_per_s
        lines.append(
            f"  one GiB more gives    {_rate(plan.more.decode.tokens_per_s)} tokens/s ({factor:.1f} times)"
        )
    if plan.largest_context is not None:
        lines.append(f"  longest context here  {plan.largest_context} tokens")
    return lines


def _measured(plan: Plan) -> list[str]:
    disk, compute = plan.rates.disk, plan.rates.compute
    lines = []
    if disk is not None:
        how = (
            "direct reads"
            if disk.method == "direct"
            else "buffered reads, dropped from the page cache before"
        )
        note = "; they came from memory, not from a disk" if disk.cached else ""
        lines.append(f"  disk       {format_size(disk.bytes_per_s)}/s, {how}{note}, {disk.date}")
    if compute is not None:
        decode, prefill = 1 / compute.decode_s, compute.prefill_tokens / compute.prefill_s
        lines.append(
            f"  processor  {_rate(decode)} tokens/s decode, {_rate(prefill)} prefill in memory, {compute.date}"
        )
        if compute.busy:
            lines.append("             disturbed by other work, so it is measured again the next time")
    return lines


def _stages(plan: Plan) -> list[str]:
    width = _name_width(plan)
    return [_stage(share, width) for share in plan.stages]


def _stage(share: StageShare, width: int) -> str:
    total = share.pinned_bytes + share.streamed_bytes + share.expert_bytes
    if not total:
        bar = f"{'(rows are read as needed)' if share.by_row_bytes else '':<{_BAR}}"
        return f"  {_safe(share.name):<{width}} [{bar}] {format_size(share.by_row_bytes):>10}"
    here, chosen = share.pinned_bytes + share.kept_bytes, share.expert_bytes - share.kept_bytes
    pinned, passing = round(_BAR * here / total), round(_BAR * chosen / total)
    if share.streamed_bytes or chosen:
        pinned = min(pinned, _BAR - 1)
    bar = "#" * pinned + "-" * (_BAR - pinned - passing) + "." * passing
    sizes = f"{format_size(here):>10} in memory"
    if share.streamed_bytes:
        sizes += f"{format_size(share.streamed_bytes):>10} read"
    if chosen:
        sizes += f"{format_size(chosen):>10} when chosen"
    return f"  {_safe(share.name):<{width}} [{bar[:_BAR]}] {sizes}"


def _name_width(plan: Plan) -> int:
    return max((len(_safe(s.name)) for s in plan.stages), default=0)


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _safe(text: str) -> str:
    """Names come from files and may hold what steers a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
