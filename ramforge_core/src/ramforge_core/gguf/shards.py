"""Finds the files of a model: one file, or all shards of a split one, from whichever was given (A18 to A20)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import define, field, frozen

from ramforge_core.errors import GGUFError, MetadataError, ModelNotFoundError, TensorError
from ramforge_core.gguf.reader import Header, read_header

MAX_SHARDS = 9999
"""Far beyond any model. A name may say up to 99999, but each is looked for, and that takes a second."""
_SHOWN = 5
"""So many names or problems stand in a message, and how many more there are."""
_SHARD_NAME = re.compile(
    r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)$", re.IGNORECASE
)


@define
class Found:
    """Headers in shard order, what is missing of the model (None: nothing), and warnings."""

    headers: list[Header]
    incomplete: str | None = None
    warnings: list[str] = field(factory=list)


@frozen
class _Split:
    """What a shard says of the model it belongs to: its ``split.*`` keys."""

    number: int
    count: int
    tensors: int | None

    @classmethod
    def of(cls, header: Header) -> _Split | None:
        """None for a model of one file; merged files say that their count is 0."""
        metadata = header.metadata
        count = metadata.integer("split.count", 1)
        if not 0 <= count <= MAX_SHARDS:
            raise MetadataError(
                f"{header.path}: metadata key 'split.count' is {count}; 0 to {MAX_SHARDS} are allowed"
            )
        if count < 2:
            return None
        number = metadata.integer("split.no")
        if not 0 <= number < count:
            raise MetadataError(
                f"{header.path}: metadata key 'split.no' is {number}, but the model has {count} shards"
            )
        return cls(number, count, metadata.integer("split.tensors.count", None))


def find_model(path: Path, *, allow_incomplete: bool) -> Found:
    """All files of the model that a file, a shard or a folder stands for.

    allow_incomplete : what can be read is returned, and ``Found.incomplete`` lists what is missing.
    Raises one GGUFError that lists all shards that are missing, damaged or of another model.
    """
    if path.is_dir():
        path = _model_in_folder(path)
    named = _shard_name(path.name)
    given: Header | None = None
    try:
        given = read_header(path, allow_incomplete=allow_incomplete)
        split = _Split.of(given)
    except GGUFError:
        if named is None:
            raise
    else:
        if split is None:
            return Found([given], given.incomplete, list(given.warnings))
        if named is None:
            return _gather(path, given, _files_by_header(path, split), allow_incomplete=allow_incomplete)
    return _gather(path, given, _files_by_name(path, named), allow_incomplete=allow_incomplete)


def _shard_name(name: str) -> re.Match[str] | None:
    """The parts of a shard's name; None for any other, also for one that no shard has (3 of 2, 0 of 0, 1 of 99999)."""
    named = _SHARD_NAME.match(name)
    return named if named and 1 <= int(named["number"]) <= int(named["count"]) <= MAX_SHARDS else None


def _shard_names(named: re.Match[str]) -> list[str]:
    """The names of all shards, from that of one."""
    numbers = range(1, int(named["count"]) + 1)
    return [f"{named['stem']}-{number:05d}-of-{named['count']}{named['end']}" for number in numbers]


def _files_by_name(path: Path, named: re.Match[str]) -> list[Path]:
    """All shards, there or not; what does not lie beside a link is taken from beside its target, if it is there."""
    files = [path.with_name(name) for name in _shard_names(named)]
    others = _beside_target(path, len(files))
    return [b if b is not None and not a.exists() else a for a, b in zip(files, others, strict=True)]


def _beside_target(path: Path, count: int) -> list[Path | None]:
    """The shards beside the file that a link leads to, by that file's name; None for those that are not there."""
    target = Path(os.path.realpath(path))
    named = _shard_name(target.name)
    if not path.is_symlink() or named is None or int(named["count"]) != count:
        return [None] * count
    files = [target.with_name(name) for name in _shard_names(named)]
    return [file if file.exists() else None for file in files]


def _model_in_folder(folder: Path) -> Path:
    """The file, or the first shard there is, of the one model in a folder. The order of a listing never matters."""
    files = _gguf_files(folder)
    # A projector of a vision model lies beside the language model and is none itself.
    files = [file for file in files if not file.name.lower().startswith("mmproj")] or files
    if not files:
        raise ModelNotFoundError(f"the folder {folder} holds no .gguf file")
    models: dict[tuple[str, str], Path] = {}
    for file in files:
        match = _shard_name(file.name)
        models.setdefault((match["stem"], match["count"]) if match else (file.name, ""), file)
    if len(models) > 1 and not _one_split_model(files):
        names = ", ".join(file.name for file in models.values())
        raise ModelNotFoundError(f"the folder {folder} holds {len(models)} models; give one of them: {names}")
    return files[0]


def _gguf_files(folder: Path) -> list[Path]:
    try:
        return sorted(
            p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and not p.name.startswith(".")
        )
    except OSError as error:
        raise GGUFError(f"cannot read the folder {folder}: {error.strerror or error}") from error


def _split_or_none(file: Path) -> _Split | None:
    """What a file says of its split, None for anything that is no readable shard."""
    try:
        return _Split.of(read_header(file, allow_incomplete=True))
    except (GGUFError, ModelNotFoundError):
        return None


def _one_split_model(files: list[Path]) -> bool:
    """Whether files without shard names are the shards of one model all the same."""
    splits = [_split_or_none(file) for file in files]
    return all(split is not None and split.count == len(files) for split in splits)


def _files_by_header(path: Path, wanted: _Split) -> list[Path | None]:
    """Shards that have been renamed: found by what they say of themselves among the files of the folder.

    Of a link's target the names are asked.
    """
    files: list[Path | None] = [None] * wanted.count
    files[wanted.number] = path
    for file in _gguf_files(path.parent):
        split = _split_or_none(file)
        if (
            split is not None
            and (split.count, split.tensors) == (wanted.count, wanted.tensors)
            and files[split.number] is None
        ):
            files[split.number] = file
    others = _beside_target(path, wanted.count)
    return [b if a is None else a for a, b in zip(files, others, strict=True)]


def _gather(
    path: Path, given: Header | None, files: Sequence[Path | None], *, allow_incomplete: bool
) -> Found:
    """Read all shards, put them in order, and list everything that is wrong with any of them at once (A19)."""
    problems: list[str] = []
    headers: dict[int, Header] = {}
    absent = [f"shard {number}" for number, file in enumerate(files, 1) if file is None]
    missing: list[str] = []
    for number, file in enumerate(files):
        if file is None:
            continue
        try:
            if given is None or file != path:
                headers[number] = read_header(file, allow_incomplete=allow_incomplete)
            else:
                headers[number] = given
        except ModelNotFoundError:
            missing.append(file.name)
        except GGUFError as error:
            problems.append(str(error))
    problems = [
        *_said_of(missing, "missing"),
        *_said_of(absent, "in no .gguf file of the folder"),
        *problems,
        *_drop_foreign(headers, len(files)),
    ]
    problems += [header.incomplete for header in headers.values() if header.incomplete]
    _check_double_tensors(headers.values())
    held = sum(len(header.tensors) for header in headers.values())
    declared = {split.tensors for split in map(_Split.of, headers.values()) if split} - {None, held}
    if not problems and declared:
        problems.append(
            f"the shards hold {held} tensors together, but 'split.tensors.count' says {declared.pop()}"
        )
    if not problems:
        return Found(list(headers.values()), None, _warnings(path, headers.values()))
    message = (
        f"the split model of {path} cannot be used ({len(files)} shards): {_some(problems)}; put all shards of the "
        f"model into one folder"
    )
    if not allow_incomplete or not headers:
        raise GGUFError(message)
    return Found(list(headers.values()), message, _warnings(path, headers.values()))


def _drop_foreign(headers: dict[int, Header], count: int) -> list[str]:
    """Take out the shards that belong to another model or another place, and say so of each.

    What most shards agree on is the model; if there is no majority, what the first shard says.
    """
    problems = []
    splits: dict[int, _Split | None] = {}
    for number, header in list(headers.items()):
        try:
            splits[number] = _Split.of(header)
        except MetadataError as error:
            problems.append(str(error))
            del headers[number]
    votes = Counter(split.tensors for split in splits.values() if split is not None)
    tensors = votes.most_common(1)[0][0] if votes else None
    architectures = {
        number: header.metadata.get("general.architecture") for number, header in headers.items()
    }
    architecture = next((a for a in architectures.values() if a is not None), None)
    for number, split in splits.items():
        name = headers[number].path.name
        if split is None:
            problem = f"{name} is no shard of a split model (it has no 'split.count')"
        elif split.count != count:
            problem = (
                f"{name} belongs to a model of {split.count} shards by its 'split.count', not of {count}"
            )
        elif split.number != number:
            problem = f"{name} is shard {split.number + 1} by its 'split.no', not shard {number + 1}"
        elif split.tensors != tensors:
            problem = (
                f"{name} belongs to another model: its 'split.tensors.count' is {split.tensors}, that of the other "
                f"shards {tensors}"
            )
        elif architectures[number] not in (None, architecture):
            problem = (
                f"{name} belongs to another model: its architecture is {architectures[number]!r}, that of the first "
                f"shard {architecture!r}"
            )
        else:
            continue
        problems.append(problem)
        del headers[number]
    return problems


def _check_double_tensors(headers: Iterable[Header]) -> None:
    owners: dict[str, Header] = {}
    for header in headers:
        for info in header.tensors:
            other = owners.setdefault(info.name, header)
            if other is not header:
                raise TensorError(
                    f"tensor {info.name!r} is in two shards, {other.path.name} and {header.path.name} in "
                    f"{header.path.parent}; one of them belongs to another model"
                )


def _warnings(path: Path, headers: Iterable[Header]) -> list[str]:
    headers = list(headers)
    out = [warning for header in headers for warning in header.warnings]
    if headers[0].path != path:
        out.insert(0, f"{path.name} is one shard of {len(headers)}; the model begins with {headers[0].path}")
    return out


def _some(items: list[str], separator: str = "; ") -> str:
    """All in one line, but not thousands."""
    shown = separator.join(items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown}{separator}and {len(items) - _SHOWN} more"


def _said_of(names: list[str], what: str) -> list[str]:
    """That one is, or several are, something; nothing of none."""
    return [f"{_some(names, ', ')} {'is' if len(names) == 1 else 'are'} {what}"] if names else []
