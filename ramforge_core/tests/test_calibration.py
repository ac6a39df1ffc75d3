"""`ramforge_core.calibration`: rates that are those of a disk and of a processor, and what is remembered of them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter

import numpy as np
import pytest

from ramforge_core.calibration import CalibrationStore, ComputeRate, DiskRate, measure_disk
from ramforge_core.calibration.disk import LEAST_BYTES, SHORT_BYTES, WINDOW_BYTES, device_key
from ramforge_core.datasource import DataSource
from ramforge_core.errors import GGUFError
from ramforge_core.system import process_memory

M = 1 << 20
DISK = DiskRate(1e9, 1e-4, "direct", 64 * M, "2026-01-01T00:00:00+00:00")
COMPUTE = ComputeRate(0.08, 127, 4e-6, 0.6, 64, 2e-4, "2026-01-01T00:00:00+00:00")


class Disk:
    """A disk of a given rate; remembers what was asked of it."""

    def __init__(self, bytes_per_s: float = 1e12, *, direct: bool = True, bad_at: int | None = None) -> None:
        self.is_direct, self.bad_at = direct, bad_at
        self.bytes_per_s = bytes_per_s
        self.log: list[tuple[str, int, int, int]] = []
        self.now = self.most = 0
        self._lock = threading.Lock()

    def forget(self, read) -> None:
        self.log.append(("forget", read.file, read.offset, read.nbytes))

    def read_window(self, read, out) -> None:
        if self.bad_at is not None and read.offset >= self.bad_at:
            raise GGUFError("cannot read")
        with self._lock:
            self.log.append(("read", read.file, read.offset, read.nbytes))
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(4 * read.nbytes / self.bytes_per_s)  # four in flight share the rate
        with self._lock:
            self.now -= 1

    def windows(self) -> list[tuple[int, int, int]]:
        return [entry[1:] for entry in self.log if entry[0] == "read" and entry[3] > 4096]


# ------------------------------------------------------------------ the disk


def test_the_rate_is_that_of_reads_in_flight_at_once():
    disk = Disk(400e6)
    found = measure_disk(disk, [300 * M])
    assert found.bytes_per_s == pytest.approx(400e6, rel=0.25)
    assert found.measured_bytes >= LEAST_BYTES
    assert found.method == "direct"
    assert disk.most == 4


def test_short_reads_cost_more_than_their_bytes():
    class Slow(Disk):
        def read_window(self, read, out):
            time.sleep(0.004)
            super().read_window(read, out)

    found = measure_disk(Slow(4e9), [300 * M])
    whole_s = 0.001 + WINDOW_BYTES / 4e9  # four reads share each wait
    # not much less, and more only as far as other work holds the readers up
    assert 0.7 < found.read_s(WINDOW_BYTES) / whole_s < 6
    assert 0.7 < found.read_s(SHORT_BYTES) / (0.001 + SHORT_BYTES / 4e9) < 6
    assert found.read_s(SHORT_BYTES) / SHORT_BYTES > 2 * found.read_s(WINDOW_BYTES) / WINDOW_BYTES
    assert 0 < found.read_cpu_s < 0.006


def test_windows_are_spread_over_every_file_and_no_byte_is_read_twice():
    disk = Disk()
    measure_disk(disk, [200 * M, 100 * M], least_s=0.001)
    windows = disk.windows()
    assert max(Counter(windows).values()) == 1
    assert {n for _, _, n in windows} == {WINDOW_BYTES, SHORT_BYTES}
    assert sum(n for *_, n in windows) >= LEAST_BYTES
    # a window of every 40 MiB: no warm corner decides
    places = sorted((file * 200 * M + offset) // M for file, offset, _ in windows)
    assert all(b - a <= 40 for a, b in zip([0, *places], [*places, 300], strict=False))


def test_a_small_file_is_read_once_and_its_rate_is_not_remembered():
    disk = Disk()
    found = measure_disk(disk, [5 * M + 100])
    assert sum(n for *_, n in disk.windows()) == 5 * M + 4096
    assert not found.lasting
    assert DISK.lasting


def test_little_memory_means_smaller_windows():
    disk = Disk()
    measure_disk(disk, [100 * M], free_bytes=8 * M, least_s=0)
    assert max(n for *_, n in disk.windows()) * 4 <= 2 * M


def test_f11_buffered_reads_are_dropped_from_the_page_cache_first_and_it_says_so():
    disk = Disk(direct=False)
    found = measure_disk(disk, [80 * M], least_s=0)
    assert found.method == "buffered"
    forgotten: set[tuple[int, int, int]] = set()
    for what, *window in disk.log:
        if what == "forget":
            forgotten.add(tuple(window))
        else:
            assert tuple(window) in forgotten


def test_f11_what_came_from_memory_all_the_same_is_not_remembered():
    # the disk of this test reads nothing, and the system counts that
    if process_memory().read_bytes is None:
        pytest.skip("this system does not count bytes read")
    assert measure_disk(Disk(direct=False), [80 * M], least_s=0).cached
    assert not measure_disk(Disk(direct=True), [80 * M], least_s=0).cached


def test_f11_a_warm_file_is_measured_from_the_disk(tmp_path):
    file = tmp_path / "warm.bin"
    file.write_bytes(np.random.default_rng(1).bytes(96 * M))
    with file.open("rb") as warm:
        os.fsync(warm.fileno())
        while warm.read(8 * M):
            pass
    before = process_memory().read_bytes
    with DataSource([file]) as source:
        if not source.is_direct or before is None:
            pytest.skip("this file system has no direct reads, or this system does not count bytes read")
        found = measure_disk(source, [96 * M])
    assert found.method == "direct"
    assert process_memory().read_bytes - before >= found.measured_bytes


def test_an_error_of_the_disk_is_raised_and_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(GGUFError, match="cannot read"):
        measure_disk(Disk(bad_at=30 * M), [100 * M])
    assert threading.active_count() == before


# ------------------------------------------------------------------ what is remembered


@pytest.fixture
def store(tmp_path):
    return CalibrationStore(tmp_path / "cache" / "calibration.json")


def test_rates_are_remembered_by_kind_and_key_in_one_file(store):
    store.put("disk", "a", DISK.to_dict())
    store.put("disk", "b", {**DISK.to_dict(), "bytes_per_s": 2e9})
    store.put("compute", "a", COMPUTE.to_dict())
    again = CalibrationStore(store.path)
    assert again.get("disk", "a", DiskRate.from_dict) == DISK
    assert again.get("disk", "b", DiskRate.from_dict).bytes_per_s == 2e9
    assert again.get("compute", "a", ComputeRate.from_dict) == COMPUTE
    assert again.get("compute", "b", ComputeRate.from_dict) is None
    assert [f.name for f in store.path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"version": 99}', b'{"version": 1, "disk": 3}', b"[" * 100_000],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(store, content):
    store.path.parent.mkdir()
    store.path.write_bytes(content)
    assert store.get("disk", "a", DiskRate.from_dict) is None
    store.put("disk", "a", DISK.to_dict())
    assert store.get("disk", "a", DiskRate.from_dict) == DISK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes_per_s", 0),
        ("bytes_per_s", -1.0),
        ("bytes_per_s", float("nan")),
        ("bytes_per_s", "fast"),
        ("bytes_per_s", None),
        ("method", "guessed"),
        ("latency_s", -1),
        ("short_s", -1),
        ("read_cpu_s", -1),
        ("date", 3),
        ("unknown", 1),
    ],
)
def test_a_damaged_rate_is_measured_anew(store, name, value):
    store.put("disk", "a", {**DISK.to_dict(), name: value})
    assert store.get("disk", "a", DiskRate.from_dict) is None


@pytest.mark.parametrize("name", ["decode_s", "prefill_s", "prefill_tokens"])
def test_a_pass_that_takes_no_time_is_measured_anew(store, name):
    store.put("compute", "a", {**COMPUTE.to_dict(), name: 0})
    assert store.get("compute", "a", ComputeRate.from_dict) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    store = CalibrationStore(tmp_path / "cache" / "calibration.json")
    store.put("disk", "a", DISK.to_dict())
    assert json.loads(json.dumps(DISK.to_dict()))["method"] == "direct"
    assert store.get("disk", "a", DiskRate.from_dict) is None


def test_devices_are_told_apart_and_shards_share_one(tmp_path):
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.touch()
    assert device_key(files) == device_key(files[:1]) == str(os.stat(tmp_path).st_dev)


# ------------------------------------------------------------------ the processor


def test_passes_grow_with_tokens_positions_and_reads():
    assert COMPUTE.pass_s(1, 127) == pytest.approx(0.08)
    assert COMPUTE.pass_s(64, 0) == pytest.approx(0.6, rel=0.01)
    assert COMPUTE.pass_s(1, 1127) == pytest.approx(0.08 + 1000 * 4e-6)
    assert COMPUTE.pass_s(1, 127, reads=100) == pytest.approx(0.08 + 0.02)
    assert COMPUTE.pass_s(128, 0) > 2 * 0.6 * 0.95
    assert COMPUTE.pass_s(1, 0) > 0
