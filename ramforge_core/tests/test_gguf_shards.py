"""Split models: found from any shard or folder, and everything that is amiss told at once (A16, A18 to A20)."""

from __future__ import annotations

import os

import pytest

from ramforge_core.errors import GGUFError, MetadataError, ModelNotFoundError, TensorError
from ramforge_core.gguf import open_gguf
from ramforge_core.gguf.reader import read_header
from ramforge_core.testing.gguf_writer import gguf_bytes, write_gguf

METADATA = {"general.architecture": "llama", "llama.block_count": 4}


def tensors_of(shard: int, model: str = "") -> dict:
    names = (f"blk.{shard}{model}.attn_q.weight", f"blk.{shard}{model}.attn_k.weight")
    return {name: (0, (2, 4), bytes([shard]) * 32) for name in names}


def write_shards(
    folder, count, *, stem="tiny", name="{stem}-{number:05d}-of-{count:05d}.gguf", model="", total=None
):
    """A split model of ``count`` shards with two tensors each, as llama.cpp's gguf-split writes it."""
    folder.mkdir(exist_ok=True)
    paths = []
    for shard in range(count):
        split = {
            "split.no": shard,
            "split.count": count,
            "split.tensors.count": 2 * count if total is None else total,
        }
        metadata = {**METADATA, **split} if shard == 0 else split
        path = folder / name.format(stem=stem, number=shard + 1, count=count)
        paths.append(
            write_gguf(
                path,
                metadata,
                tensors_of(shard, model),
                kinds={"split.no": "uint16", "split.count": "uint16", "split.tensors.count": "int32"},
            )
        )
    return paths


def check_whole(gguf, paths):
    assert gguf.files == tuple(paths)
    assert gguf.path == paths[0]
    assert gguf.metadata.text("general.architecture") == "llama"
    assert list(gguf.tensors) == [name for shard in range(len(paths)) for name in tensors_of(shard)]
    assert gguf.nbytes == sum(path.stat().st_size for path in paths)
    assert gguf.incomplete is None
    for info in gguf.tensors.values():
        raw = gguf.files[info.file].read_bytes()[info.offset : info.offset + info.nbytes]
        assert raw == bytes([info.file]) * 32


@pytest.mark.parametrize("given", [0, 1, 2, None])
def test_A18_any_shard_and_the_folder_open_the_whole_model(tmp_path, given):
    paths = write_shards(tmp_path / "model", 3)
    (tmp_path / "model" / "README.md").write_text("no model")
    (tmp_path / "model" / "mmproj-tiny.gguf").write_bytes(gguf_bytes({"general.architecture": "clip"}))
    gguf = open_gguf(tmp_path / "model" if given is None else paths[given])
    check_whole(gguf, paths)
    said = [w for w in gguf.warnings if "one shard of 3" in w and str(paths[0]) in w]
    assert len(said) == (given in (1, 2))


@pytest.mark.parametrize("given", ["a.gguf", "b.gguf", "c.gguf", ""])
def test_A18_renamed_shards_are_found_by_what_they_say(tmp_path, given):
    first, second, third = write_shards(tmp_path / "model", 3)
    names = {"c": first, "a": second, "b": third}
    for name, path in names.items():
        path.rename(path.with_name(f"{name}.gguf"))
    (tmp_path / "model" / "d.bin").write_bytes(b"other")
    check_whole(open_gguf(tmp_path / "model" / given), [tmp_path / "model" / f"{n}.gguf" for n in "cab"])


def test_A18_symbolic_links_as_in_model_caches(tmp_path):
    paths = write_shards(tmp_path / "blobs", 3)
    links = []
    (tmp_path / "snapshot").mkdir()
    for number, path in enumerate(paths, 1):
        path = path.rename(path.with_name(f"blob{number}"))
        link = tmp_path / "snapshot" / f"tiny-{number:05d}-of-00003.gguf"
        os.symlink(path, link)
        links.append(link)
    check_whole(open_gguf(links[1]), links)


@pytest.mark.parametrize("name", ["tiny-00001-of-00003.gguf", "other-00001-of-00003.gguf", "model.gguf"])
def test_A18_a_link_to_one_shard_finds_the_others_beside_its_target(tmp_path, name):
    paths = write_shards(tmp_path / "model", 3)
    write_shards(tmp_path / "model", 3, stem="another", model="x")  # says the same of itself
    (tmp_path / "here").mkdir()
    link = tmp_path / "here" / name
    os.symlink(paths[0], link)
    check_whole(open_gguf(link), [link, *paths[1:]])


def test_A18_what_lies_beside_a_link_comes_first(tmp_path):
    paths = write_shards(tmp_path / "model", 3)
    link = tmp_path / paths[0].name
    os.symlink(paths[0], link)
    beside = tmp_path / paths[1].name
    beside.write_bytes(paths[1].read_bytes())
    check_whole(open_gguf(link), [link, beside, paths[2]])


def test_A19_shards_that_lie_nowhere_are_those_beside_the_link(tmp_path):
    paths = write_shards(tmp_path / "model", 3)
    paths[1].unlink()
    link = tmp_path / paths[0].name
    os.symlink(paths[0], link)
    with pytest.raises(GGUFError, match=r": tiny-00002-of-00003\.gguf is missing;"):
        open_gguf(link)


def test_merged_files_say_that_they_have_no_shards(tmp_path):
    path = write_gguf(tmp_path / "merged.gguf", {**METADATA, "split.count": 0, "split.no": 0}, tensors_of(0))
    assert open_gguf(path).files == (path,)
    path = write_gguf(tmp_path / "x-00002-of-00003.gguf", METADATA, tensors_of(0))
    assert open_gguf(path).files == (path,), "a name alone makes no split model"


def test_each_shard_has_its_own_alignment(tmp_path):
    paths = write_shards(tmp_path / "m", 2)
    split = {"split.no": 1, "split.count": 2, "split.tensors.count": 4}
    write_gguf(paths[1], split, tensors_of(1), alignment=128)
    gguf = open_gguf(paths[0])
    assert [info.offset % 128 for info in gguf.tensors.values() if info.file == 1] == [0, 0]
    check_whole(gguf, paths)


def test_folders_with_no_or_several_models(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf"):
        open_gguf(tmp_path)
    one = write_gguf(tmp_path / "one.gguf", METADATA, tensors_of(0))
    assert open_gguf(tmp_path).files == (one,)
    write_shards(tmp_path, 2)
    with pytest.raises(ModelNotFoundError, match=r"holds 2 models; .*: one\.gguf, tiny-00001-of-00002\.gguf"):
        open_gguf(tmp_path)


# ------------------------------------------------------------------ A19


def test_A19_all_missing_and_foreign_shards_are_listed_at_once(tmp_path):
    paths = write_shards(tmp_path / "m", 6)
    foreign = write_shards(tmp_path / "foreign", 6, model="x", total=99)
    paths[1].unlink()
    paths[2].write_bytes(b"<!DOCTYPE html>")
    foreign[3].replace(paths[3])
    paths[4].write_bytes(paths[4].read_bytes()[:-40])
    for given in (0, 3, 4, 5):
        with pytest.raises(GGUFError) as caught:
            open_gguf(paths[given])
        message = str(caught.value)
        assert "\n" not in message
        assert "tiny-00002-of-00006.gguf is missing" in message
        assert "tiny-00003-of-00006.gguf is a web page" in message
        assert "tiny-00004-of-00006.gguf belongs to another model" in message
        assert "tiny-00005-of-00006.gguf is cut short" in message
        assert "tiny-00006" not in message.replace(str(paths[given]), "")


def test_A19_the_passed_shard_may_be_the_missing_one(tmp_path):
    paths = write_shards(tmp_path / "m", 3)
    paths[0].unlink()
    with pytest.raises(GGUFError, match=r"tiny-00001-of-00003.gguf is missing"):
        open_gguf(paths[2])
    with pytest.raises(ModelNotFoundError):
        open_gguf(paths[0])
    with pytest.raises(GGUFError, match=r"tiny-00001-of-00003.gguf is missing"):
        open_gguf(tmp_path / "m")


def test_A19_unreadable_shard(tmp_path, monkeypatch):
    paths = write_shards(tmp_path / "m", 4)
    paths[2].unlink()
    paths[2].mkdir()  # cannot be read by anybody, not even by the superuser
    with pytest.raises(GGUFError, match=r"tiny-00003-of-00004.gguf is not a regular file"):
        open_gguf(paths[0])
    if os.geteuid() != 0:
        paths[3].chmod(0)
        with pytest.raises(GGUFError, match=r"cannot read .*tiny-00004-of-00004.gguf: Permission denied"):
            open_gguf(paths[0])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"split.no": 1, "split.count": 5, "split.tensors.count": 6}, "belongs to a model of 5 shards"),
        (
            {"split.no": 0, "split.count": 3, "split.tensors.count": 6},
            "is shard 1 by its 'split.no', not shard 2",
        ),
        (
            {"split.no": 3, "split.count": 3, "split.tensors.count": 6},
            "'split.no' is 3, but the model has 3 shards",
        ),
        ({"split.no": 1, "split.count": "3", "split.tensors.count": 6}, "'split.count' must be an integer"),
        ({"split.count": 3, "split.tensors.count": 6}, "'split.no' .*is missing"),
        ({"split.no": 1, "split.count": 3, "split.tensors.count": 7}, "belongs to another model"),
        (METADATA, "is no shard of a split model"),
    ],
)
def test_A19_shards_that_contradict_the_others(tmp_path, keys, said):
    paths = write_shards(tmp_path / "m", 3)
    write_gguf(paths[1], keys, tensors_of(1))
    with pytest.raises(GGUFError, match=said):
        open_gguf(paths[0])


def test_A19_a_shard_of_another_architecture(tmp_path):
    paths = write_shards(tmp_path / "m", 3)
    split = {"split.no": 2, "split.count": 3, "split.tensors.count": 6}
    write_gguf(paths[2], {"general.architecture": "qwen2", **split}, tensors_of(2))
    with pytest.raises(GGUFError, match=r"00003-of-00003.gguf belongs to another model: .*'qwen2'.*'llama'"):
        open_gguf(paths[0])


def test_A19_a_whole_set_under_names_of_another_count(tmp_path):
    paths = write_shards(tmp_path / "m", 3, name="{stem}-{number:05d}-of-00004.gguf")
    with pytest.raises(
        GGUFError, match=r"00004-of-00004.gguf is missing.*00001-of-00004.gguf belongs to a model of 3"
    ):
        open_gguf(paths[0])


def test_A19_tensors_must_add_up(tmp_path):
    paths = write_shards(tmp_path / "m", 3, total=9)
    with pytest.raises(GGUFError, match=r"6 tensors together, but 'split.tensors.count' says 9"):
        open_gguf(paths[0])


def test_A19_renamed_shards_of_which_one_is_missing(tmp_path):
    paths = write_shards(tmp_path / "m", 3, name="part{number}.gguf")
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"shard 2 is in no .gguf file of the folder"):
        open_gguf(paths[2])


def test_A19_inspection_shows_the_shards_that_are_there(tmp_path):
    paths = write_shards(tmp_path / "m", 3)
    paths[1].unlink()
    gguf = open_gguf(paths[2], allow_incomplete=True)
    assert "tiny-00002-of-00003.gguf is missing" in gguf.incomplete
    assert gguf.files == (paths[0], paths[2])
    assert list(gguf.tensors) == [*tensors_of(0), *tensors_of(2)]
    assert {info.file for info in gguf.tensors.values()} == {0, 1}


def test_A19_many_missing_shards_do_not_flood_the_terminal(tmp_path):
    path = write_gguf(tmp_path / "x-00001-of-09999.gguf", {"split.no": 0, "split.count": 9999}, tensors_of(0))
    with pytest.raises(GGUFError, match=r"x-00006-of-09999\.gguf, and 9993 more are missing") as caught:
        open_gguf(path)
    assert str(caught.value).count("-of-09999") == 6
    path = path.rename(tmp_path / "x.gguf")
    with pytest.raises(GGUFError, match=r"shard 6, and 9993 more are in no \.gguf file of the folder"):
        open_gguf(path)


def test_A16_same_tensor_in_two_shards_is_refused_with_both_names(tmp_path):
    paths = write_shards(tmp_path / "m", 3)
    write_gguf(paths[2], {"split.no": 2, "split.count": 3, "split.tensors.count": 6}, tensors_of(1))
    with pytest.raises(
        TensorError, match=r"'blk\.1\.attn_q\.weight' .*00002-of-00003.* and .*00003-of-00003"
    ):
        open_gguf(paths[0])


# ------------------------------------------------------------------ A20


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2)])
@pytest.mark.parametrize("given", ["joined.gguf", "tiny-00001-of-00003.gguf"])
def test_A20_concatenated_shards_are_named(tmp_path, order, given):
    paths = write_shards(tmp_path / "m", 3)
    joined = tmp_path / given
    joined.write_bytes(b"".join(paths[i].read_bytes() for i in order))
    with pytest.raises(GGUFError, match=r"shards one behind the other.*do not concatenate"):
        open_gguf(joined)


def test_A20_first_shard_without_tensors(tmp_path):
    split = {"split.count": 2, "split.tensors.count": 2}
    first = gguf_bytes({**METADATA, "split.no": 0, **split})
    second = gguf_bytes({"split.no": 1, **split}, tensors_of(1))
    for padding in (b"", bytes(-len(first) % 32)):
        (tmp_path / "joined.gguf").write_bytes(first + padding + second)
        with pytest.raises(GGUFError, match=r"do not concatenate"):
            open_gguf(tmp_path / "joined.gguf")
    (tmp_path / "x-00001-of-00002.gguf").write_bytes(first)
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(second)
    assert list(open_gguf(tmp_path / "x-00001-of-00002.gguf").tensors) == list(tensors_of(1))


def test_A20_two_whole_models_in_one_file(tmp_path):
    raw = gguf_bytes(METADATA, tensors_of(0))
    (tmp_path / "two.gguf").write_bytes(raw + raw)
    with pytest.raises(GGUFError, match=f"a second GGUF file from byte {len(raw)}"):
        open_gguf(tmp_path / "two.gguf")


@pytest.mark.parametrize(
    "names",
    [
        ("m.gguf.part1of2", "m.gguf.part2of2"),
        ("m.gguf-split-a", "m.gguf-split-b"),
        ("m.gguf.part-aa", "m.gguf.part-ab"),
        ("m.gguf.part01", "m.gguf.part02"),
        ("xaa", "xab"),
        ("m.gguf.001", "m.gguf.002"),
        ("m_00", "m_01"),
    ],
)
def test_A20_pieces_of_a_byte_split_file_are_named(tmp_path, names):
    raw = gguf_bytes(METADATA, tensors_of(0))
    middle = len(raw) - 40
    for name, part in zip(names, (raw[:middle], raw[middle:]), strict=True):
        (tmp_path / name).write_bytes(part)
    for number, name in enumerate(names, 1):
        with pytest.raises(GGUFError, match=r"piece .*byte-split file.*join") as caught:
            open_gguf(tmp_path / name)
        if "part" in name or "split" in name:
            assert f"this is piece {number}" in str(caught.value)
    if names[0].endswith("of2"):
        with pytest.raises(GGUFError, match=r"piece 1 of 2"):
            open_gguf(tmp_path / names[0])


def test_A20_a_cut_file_with_an_innocent_name_is_not_called_a_piece(tmp_path):
    raw = gguf_bytes(METADATA, tensors_of(0))
    for name in ("model.gguf", "llama-2.gguf", "modelaa"):
        (tmp_path / name).write_bytes(raw[:-1])
        with pytest.raises(TensorError, match=r"fetch the file again$"):
            open_gguf(tmp_path / name)


@pytest.mark.parametrize("name", ["m-00000-of-00000.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf"])
def test_a_name_that_no_shard_can_have_says_nothing(tmp_path, name):
    """Found by fuzzing: of zero shards none was missing, and then the first one was looked for."""
    path = write_gguf(tmp_path / name, {"general.architecture": "llama"})
    assert open_gguf(path).files == (path,)
    path.write_bytes(b"no model")
    with pytest.raises(GGUFError, match="not a GGUF file"):
        open_gguf(path)


def test_read_header_reads_one_file_only(tmp_path):
    paths = write_shards(tmp_path / "m", 2)
    header = read_header(paths[1])
    assert [info.name for info in header.tensors] == list(tensors_of(1))
    with pytest.raises(MetadataError):
        header.metadata.text("general.architecture")
