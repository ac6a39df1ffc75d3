"""The facts of a file that ``ramforge inspect`` shows, all from its header. Long arrays are counted, not listed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

from attrs import asdict, frozen

from ramforge_core.gguf import GGUF, Metadata, MetadataArray, TensorInfo, open_gguf
from ramforge_core.inspection.vocabulary import Asker, TokenizerFacts, tokenizer_facts
from ramforge_core.plugins import Registry
from ramforge_core.support import ModelSupport, model_support

LISTED_ITEMS = 16
"""Arrays of numbers up to this length are shown with their items."""
LISTED_TEXT_BYTES = 1 << 10
"""What is shown of texts so long that the reader leaves them in the file (a whole tokenizer.json, say)."""


@frozen
class ShardFacts:
    """One file of the model."""

    path: str
    nbytes: int
    tensors: int


@frozen
class TypeShare:
    """All tensors of one type. ``nbytes``, ``share`` (of all known bytes) and ``bits_per_weight``: None if unknown."""

    ggml_type: int
    name: str
    tensors: int
    values: int
    nbytes: int | None
    share: float | None
    bits_per_weight: float | None


@frozen
class RopeFacts:
    """How positions are rotated, and how far that has been stretched.

    scaling : ``none``, ``linear``, ``yarn``, ``longrope``, ..., or ``llama3`` for factors in ``rope_freqs.weight``.
    """

    scaling: str
    factor: float | None
    original_context: int | None
    base: float | None
    dimensions: int | None


@frozen(eq=False)
class Inspection:
    """One model as its header describes it.

    parameters : values of all tensors; tied embeddings are in the file once and count once.
    incomplete : what is missing of the file or of its shards, None if it is whole.
    chat_template : the default one, None if there is none.
    """

    gguf: GGUF
    architecture: str | None
    parameters: int
    files: Sequence[ShardFacts]
    types: Sequence[TypeShare]
    tokenizer: TokenizerFacts
    rope: RopeFacts
    chat_template: str | None
    tied_embeddings: bool
    warnings: Sequence[str]
    support: ModelSupport

    @property
    def incomplete(self) -> str | None:
        return self.gguf.incomplete

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: only dicts, lists, text, numbers and None."""
        gguf = self.gguf
        return {
            "path": str(gguf.path),
            "version": gguf.version,
            "alignment": gguf.alignment,
            "nbytes": gguf.nbytes,
            "incomplete": gguf.incomplete,
            "warnings": list(self.warnings),
            "architecture": self.architecture,
            "parameters": self.parameters,
            "tied_embeddings": self.tied_embeddings,
            "files": [asdict(file) for file in self.files],
            "metadata": {key: value_facts(gguf.metadata, key) for key in gguf.metadata},
            "quantization": [asdict(share) for share in self.types],
            "tensors": [
                {
                    "name": info.name,
                    "shape": list(info.shape),
                    "type": info.type_name,
                    "ggml_type": info.ggml_type,
                    "file": info.file,
                    "offset": info.offset,
                    "nbytes": info.nbytes,
                }
                for info in gguf.tensors.values()
            ],
            "tokenizer": {
                **asdict(self.tokenizer),
                "end_of_generation": [
                    {"id": token, "text": text} for token, text in self.tokenizer.end_of_generation.items()
                ],
                "warnings": list(self.tokenizer.warnings),
            },
            "rope": asdict(self.rope),
            "chat_template": self.chat_template,
            "support": self.support.to_dict(),
        }


def inspect(path: str | PathLike[str], registry: Registry | None = None) -> Inspection:
    """Look at a file, a folder or any shard of a split model. A file that is cut short is shown as far as it goes.

    registry : for what `support` says of the file; that of the installed plugins by default.
    Raises GGUFError (and its kin) if the header is damaged, ModelNotFoundError if there is no such file.
    """
    gguf = open_gguf(path, allow_incomplete=True)
    metadata = gguf.metadata
    held = Counter(info.file for info in gguf.tensors.values())
    sizes = enumerate(zip(gguf.files, gguf.file_bytes, strict=True))
    ask = Asker(metadata)
    architecture = ask.text("general.architecture")
    tokenizer = tokenizer_facts(ask)
    return Inspection(
        gguf=gguf,
        architecture=architecture,
        parameters=sum(info.n_values for info in gguf.tensors.values()),
        files=[ShardFacts(str(file), nbytes, held[index]) for index, (file, nbytes) in sizes],
        types=_type_shares(gguf.tensors.values()),
        tokenizer=tokenizer,
        rope=_rope_facts(gguf, architecture, ask),
        chat_template=ask.text("tokenizer.chat_template"),
        tied_embeddings=gguf.tied_embeddings,
        warnings=[*gguf.warnings, *tokenizer.warnings, *ask.refused],
        support=model_support(gguf, registry or Registry.discover()),
    )


def value_facts(metadata: Metadata, key: str) -> Any:
    """A value as ``--json`` shows it: scalars and short arrays as they are, the rest as what it is and how long."""
    long_text = metadata.long_text(key, LISTED_TEXT_BYTES)
    if long_text is not None:
        return {"text_bytes": long_text[0], "begins": long_text[1]}
    value = metadata[key]
    if not isinstance(value, MetadataArray):
        return _finite(value)
    if value.count <= LISTED_ITEMS and value.nbytes <= LISTED_TEXT_BYTES:
        return _finite(value.to_list())
    return {"array_of": value.element_type, "items": value.count}


def _finite(value: object) -> object:
    """JSON has no NaN and no infinities; they become text."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _type_shares(infos: Iterable[TensorInfo]) -> list[TypeShare]:
    """The quantization of a file, the types with the most bytes first."""
    by_type: defaultdict[int, list[TensorInfo]] = defaultdict(list)
    infos = list(infos)
    for info in infos:
        by_type[info.ggml_type].append(info)
    total = sum(info.nbytes or 0 for info in infos)
    shares = []
    for ggml_type, members in by_type.items():
        values = sum(info.n_values for info in members)
        nbytes = None if members[0].nbytes is None else sum(info.nbytes or 0 for info in members)
        shares.append(
            TypeShare(
                ggml_type,
                members[0].type_name,
                len(members),
                values,
                nbytes,
                None if nbytes is None else nbytes / total,
                None if nbytes is None else 8 * nbytes / values,
            )
        )
    return sorted(shares, key=lambda share: (-(share.nbytes or 0), share.ggml_type))


def _rope_facts(gguf: GGUF, architecture: str | None, ask: Asker) -> RopeFacts:
    prefix = f"{architecture}.rope"
    scaling = ask.text(f"{prefix}.scaling.type") or "none"
    if "rope_freqs.weight" in gguf.tensors:
        scaling = "llama3"
    elif "rope_factors_long.weight" in gguf.tensors:
        scaling = "longrope"
    return RopeFacts(
        scaling=scaling,
        factor=ask.number(f"{prefix}.scaling.factor"),
        original_context=ask.integer(f"{prefix}.scaling.original_context_length"),
        base=ask.number(f"{prefix}.freq_base"),
        dimensions=ask.integer(f"{prefix}.dimension_count"),
    )
