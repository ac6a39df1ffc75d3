"""The data source: windows and extents, short reads, errors, direct reads that turn out impossible."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import threading
import time

import numpy as np
import pytest

from ramforge_core.datasource import DataSource, MappedExtent
from ramforge_core.errors import GGUFError
from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import Read


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(1).bytes(5 * PAGE + 100))
    return path


def window(source: DataSource, offset: int, nbytes: int, needed: int | None = None) -> bytes:
    out = allocate(nbytes)
    source.read_window(Read(0, offset, nbytes, (("x", 0, needed or nbytes),), 0), out)
    return out.tobytes()


def mapped(source: DataSource, offset: int, nbytes: int) -> MappedExtent:
    extent = source.map(0, offset, nbytes)
    if extent is None:
        pytest.skip("this system maps no files, or not so that errors are told")
    return extent


@pytest.mark.parametrize("direct", [True, False])
def test_a_window_may_reach_past_the_end_its_pieces_may_not(file, direct):
    data = file.read_bytes()
    with DataSource([file], direct) as source:
        assert window(source, PAGE, 2 * PAGE) == data[PAGE : 3 * PAGE]
        assert window(source, 5 * PAGE, PAGE, 100)[:100] == data[5 * PAGE :]
        with pytest.raises(
            GGUFError, match=rf"data: ends at byte {len(data)}, but 101 bytes .* from byte {5 * PAGE}"
        ):
            window(source, 5 * PAGE, PAGE, 101)
        with pytest.raises(GGUFError, match="ends at byte"):
            source.read_into(0, PAGE, allocate(5 * PAGE))


@pytest.mark.parametrize("direct", [True, False])
def test_short_reads_are_continued(file, direct, monkeypatch):
    real, sizes = os.preadv, iter([PAGE, 100, 1, 4000] * 50)

    def short(fd, buffers, offset):
        return real(fd, [buffers[0][: next(sizes)]], offset)

    monkeypatch.setattr(os, "preadv", short)
    with DataSource([file], direct) as source:
        assert window(source, 0, 4 * PAGE) == file.read_bytes()[: 4 * PAGE]
        out = allocate(3 * PAGE)
        source.read_into(0, 77, out)
        assert out.tobytes() == file.read_bytes()[77 : 77 + 3 * PAGE]


def test_f11_j10_direct_reads_that_turn_out_impossible_become_buffered_for_all_threads(file, monkeypatch):
    real, refused = os.preadv, []
    with DataSource([file]) as source:
        if not source.is_direct:
            pytest.skip("this file system has no direct reads")
        direct = source._direct[0]

        def einval(fd, buffers, offset):
            if fd == direct:
                refused.append(fd)
                time.sleep(0.02)  # so that several threads are refused at once
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", einval)
        got: list[bytes] = []
        threads = [threading.Thread(target=lambda: got.append(window(source, 0, 4 * PAGE))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == [file.read_bytes()[: 4 * PAGE]] * 4
        assert len(refused) > 1
        assert not source.is_direct
        count = len(refused)
        window(source, PAGE, PAGE)
        assert len(refused) == count


def test_an_io_error_names_file_bytes_and_cause(file, monkeypatch):
    def eio(*_):
        raise OSError(errno.EIO, "Input/output error")

    with DataSource([file]) as source:
        monkeypatch.setattr(os, "preadv", eio)
        with pytest.raises(
            GGUFError, match=f"data: cannot read {PAGE} bytes at byte {PAGE}: Input/output error"
        ):
            window(source, PAGE, PAGE)


def test_a_mapped_extent_is_the_file_and_nothing_before_it(file):
    data, start = file.read_bytes(), 2 * PAGE + 32
    with DataSource([file]) as source:
        extent = mapped(source, start, len(data) - start)
        assert extent.offset == start // mmap.PAGESIZE * mmap.PAGESIZE
        source.fetch(extent, start + 5, 3 * PAGE)
        view = extent.view(start + 5, 3 * PAGE)
    assert view.tobytes() == data[start + 5 :][: 3 * PAGE], "also when the source is closed"
    assert not view.flags.writeable
    assert view.ctypes.data % 64 == (start + 5) % 64


def test_a_file_that_is_too_short_for_its_mapping_is_an_error_and_no_signal(file):
    size = file.stat().st_size
    with DataSource([file]) as source:
        with pytest.raises(GGUFError, match=rf"data: ends at byte {size}, but {size} bytes .* from byte 1;"):
            source.map(0, 1, size)
        extent = mapped(source, 0, size)
        os.truncate(file, PAGE)
        source.fetch(extent, 0, PAGE)
        with pytest.raises(GGUFError, match=rf"data: ends at byte {PAGE}, but {size} bytes .* from byte 0;"):
            source.fetch(extent, 0, size)


def test_an_io_error_of_a_mapped_file_names_file_bytes_and_cause(file, monkeypatch):
    class Failing(mmap.mmap):
        def madvise(self, advice, *extent):
            if extent[-1:] > (0,):
                raise OSError(errno.EFAULT, "Bad address")

    monkeypatch.setattr(mmap, "mmap", Failing)
    with DataSource([file]) as source:
        extent = mapped(source, 0, 3 * PAGE)
        with pytest.raises(
            GGUFError, match=f"data: cannot read {PAGE} bytes at byte {PAGE}: Input/output error"
        ):
            source.fetch(extent, PAGE, PAGE)


def test_files_are_closed_also_when_one_cannot_be_opened(file, tmp_path):
    before = open_files()
    with pytest.raises(GGUFError, match="gone: cannot open the file"):
        DataSource([file, tmp_path / "gone"])
    source = DataSource([file])
    source.close()
    source.close()
    assert open_files() == before


def test_buffered_windows_leave_nothing_in_the_page_cache(tmp_path):
    """E06: a stream without direct reads must not fill the cgroup with page cache."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system drops no pages on demand")
    path = tmp_path / "big"
    with path.open("wb") as out:
        out.write(os.urandom(8 << 20))
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with DataSource([path], direct=False) as source:
        for offset in range(0, 8 << 20, 1 << 20):
            window(source, offset, 1 << 20)
    cached = subprocess.run(["fincore", "-bno", "RES", str(path)], capture_output=True, text=True)
    if cached.returncode:
        pytest.skip("no fincore here to ask what is cached")
    assert int(cached.stdout) <= 1 << 20
