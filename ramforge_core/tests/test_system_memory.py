"""Memory facts of `ramforge_core.system` on made-up ``/proc`` and ``/sys`` trees, and in a real cgroup."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ramforge_core.sizes import parse_size
from ramforge_core.system import (
    available_memory,
    check_budget,
    default_budget,
    huge_file_bytes,
    largest_budget,
    memory,
    process,
    process_memory,
    waited_s,
)

M, G = 1 << 20, 1 << 30


@pytest.fixture
def machine(tmp_path):
    """A function that writes files below a fake root; sizes in MiB for the machine, None for no such line."""

    def make(files=None, total=8192, available=6144, own=0):
        lines = {"MemTotal": total, "MemFree": 1, "MemAvailable": available}
        proc = {
            "proc/meminfo": "".join(f"{k}:   {v * 1024} kB\n" for k, v in lines.items() if v is not None),
            "proc/self/status": f"Name:\tx y\nVmRSS:\t {own * 2048} kB\nRssAnon:\t {own * 1024} kB\n",
        }
        for name, text in {**proc, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def v2(folder, limit, usage=0, cache=0):
    """Files of one v2 group, sizes in MiB; the cache lies half in each list."""
    folder = f"sys/fs/cgroup/{folder}".rstrip("/")
    return {
        "proc/self/cgroup": "0::/a/b\n",
        f"{folder}/memory.max": "max\n" if limit is None else f"{limit * M}\n",
        f"{folder}/memory.current": f"{usage * M}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {cache * M // 2}\nactive_file {cache * M // 2}\n",
    }


def v1(folder, limit, usage=0, cache=0, hierarchical=None):
    """Files of one v1 group, sizes in MiB. The group's own cache is nought: all of it belongs to children."""
    folder = f"sys/fs/cgroup/memory/{folder}".rstrip("/")
    endless = 9223372036854771712
    return {
        "proc/self/cgroup": "5:cpu:/elsewhere\n4:memory:/a/b\n0::/\n",
        f"{folder}/memory.limit_in_bytes": f"{endless if limit is None else limit * M}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage * M}\n",
        f"{folder}/memory.stat": (
            f"inactive_file 0\nactive_file 0\nhierarchical_memory_limit {(hierarchical or 0) * M or endless}\n"
            f"total_cache {cache * M}\ntotal_inactive_file {cache * M // 2}\ntotal_active_file {cache * M // 2}\n"
        ),
    }


both = pytest.mark.parametrize("version", [v1, v2])


def test_a_machine_without_groups(machine):
    facts = available_memory(machine())
    assert (facts.total, facts.available, facts.limit) == (8 * G, 6 * G, 8 * G)
    assert facts.cgroups == ()
    assert facts.limit_source == "the machine"


@both
def test_a_group_tighter_than_the_machine(machine, version):
    facts = available_memory(machine(version("a/b", limit=2048, usage=512)))
    assert (facts.total, facts.available, facts.limit) == (8 * G, 1536 * M, 2 * G)
    assert facts.limit_source.startswith("the cgroup ")
    assert facts.limit_source.endswith("/a/b")


@both
def test_the_tightest_level_counts_for_limit_and_for_what_is_left(machine, version):
    files = {
        **version("a/b", limit=1024, usage=100),
        **version("a", limit=3072, usage=2560),
        **version("", limit=None, usage=5000),
    }
    facts = available_memory(machine(files))
    assert [group.limit for group in facts.cgroups] == [1 * G, 3 * G]
    assert (facts.limit, facts.available) == (1 * G, 512 * M)
    assert facts.limit_source.endswith("/a/b")


@both
def test_a_group_larger_than_the_machine_does_not_count(machine, version):
    facts = available_memory(machine(version("a/b", limit=100_000, usage=10)))
    assert (facts.limit, facts.available, facts.limit_source) == (8 * G, 6 * G, "the machine")


@both
def test_no_limit_is_no_group(machine, version):
    assert available_memory(machine(version("a/b", limit=None, usage=10))).cgroups == ()


@both
def test_in_a_container_the_path_is_the_hosts_and_the_mount_counts(machine, version):
    assert available_memory(machine(version("", limit=512))).limit == 512 * M


def test_v1_parents_outside_the_container_count(machine):
    facts = available_memory(machine(v1("", limit=None, usage=100, hierarchical=700)))
    assert (facts.limit, facts.available) == (700 * M, 600 * M)


def test_v1_the_group_that_sets_the_limit_is_named(machine):
    files = {**v1("a/b", limit=None, hierarchical=700), **v1("a", limit=700, hierarchical=700)}
    assert available_memory(machine(files)).limit_source.endswith("memory/a")


def test_v2_high_slows_down_and_so_limits(machine):
    files = {**v2("a/b", limit=2048), "sys/fs/cgroup/a/b/memory.high": f"{G}\n"}
    assert available_memory(machine(files)).limit == G


@pytest.mark.parametrize("top", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_v2_where_both_versions_are_mounted(machine, top):
    files = {"proc/self/cgroup": "0::/a\n", f"{top}/a/memory.max": f"{G}\n"}
    assert available_memory(machine(files)).limit == G


@both
def test_e04_page_cache_does_not_count_as_used(machine, version):
    """The first run fills the group with cache; the second has the same plan."""
    first = machine(version("a/b", limit=2048, usage=200, cache=0))
    before = (available_memory(first).available, default_budget(first), check_budget(1800 * M, first))
    second = machine(version("a/b", limit=2048, usage=2040, cache=1840))
    assert before == (
        available_memory(second).available,
        default_budget(second),
        check_budget(1800 * M, second),
    )
    assert before[0] == 1848 * M


@both
def test_e04_a_cache_larger_than_the_usage_is_not_more_than_the_limit(machine, version):
    """The kernel counts the two at different moments."""
    assert available_memory(machine(version("a/b", limit=512, usage=100, cache=120))).available == 512 * M


@both
def test_e06_a_budget_over_the_limit_is_clamped_aloud(machine, version, caplog):
    root = machine(version("a/b", limit=2048, usage=100))
    budget = check_budget(4 * G, root)
    assert 1900 * M < budget < 1948 * M
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("ramforge", logging.WARNING)
    text = record.getMessage()
    assert "4.00 GiB" in text
    assert "2.00 GiB" in text
    assert "1.89 GiB" in text
    assert "a/b" in text


def test_e06_a_budget_within_the_limit_is_kept_silently(machine, caplog):
    root = machine(v2("a/b", limit=416, usage=30), own=25)
    assert check_budget(400 * M, root) == 400 * M
    assert caplog.records == []


def test_e06_what_the_process_already_has_is_part_of_its_budget(machine):
    tight = largest_budget(machine(v2("a/b", limit=512, usage=300), own=0))
    assert largest_budget(machine(v2("a/b", limit=512, usage=300), own=290)) > tight + 280 * M


def test_e06_a_full_group_still_gives_a_budget_that_can_be_refused(machine):
    assert check_budget(G, machine(v2("a/b", limit=64, usage=64))) == 1


def test_e06_a_full_machine_binds_too(machine, caplog):
    assert check_budget(7 * G, machine(available=2048)) < 2 * G
    assert "the machine" in caplog.text


@pytest.mark.parametrize(
    ("available", "budget"), [(10240, 8192), (2560, 2048), (2000, 1488), (1024, 512), (600, 300)]
)
def test_e19_the_default_leaves_a_reserve(machine, available, budget):
    """A fifth of what is free; at least 512 MiB, or half of less than 1 GiB."""
    assert default_budget(machine(total=16384, available=available)) == budget * M


@both
def test_the_default_in_a_container(machine, version):
    root = machine(version("a/b", limit=1000, usage=520, cache=500), own=20)
    assert default_budget(root) == 800 * M


def test_j05_percent_of_the_real_limit(machine):
    assert parse_size("50%", available_memory(machine(v2("a/b", limit=3072))).limit) == 1536 * M


def test_process_facts(machine):
    files = {
        "proc/self/status": "Name:\tVmRSS: 7\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\nRssAnon:\t 100 kB\nVmSwap:\t 5 kB\n",
        "proc/self/stat": "17 (a) b (c) R 1 2 3 4 5 6 71 8 91 10 11\n",
        "proc/self/io": "rchar: 1\nread_bytes: 4096\nwrite_bytes: 3\n",
    }
    facts = process_memory(machine(files))
    assert (facts.rss, facts.peak_rss, facts.rss_anon, facts.swap) == (204800, 307200, 102400, 5120)
    assert (facts.minor_faults, facts.major_faults, facts.read_bytes) == (71, 91, 4096)


def test_huge_pages_of_mapped_files(machine, tmp_path):
    rollup = "5600-7fff ---p 00000000 00:00 0 [rollup]\nAnonHugePages: 4096 kB\nFilePmdMapped: 2048 kB\n"
    assert huge_file_bytes(machine({"proc/self/smaps_rollup": rollup})) == 2 * M
    assert huge_file_bytes(tmp_path / "nowhere") == 0


def test_files_that_are_forbidden_or_odd_are_unknown(machine):
    facts = process_memory(machine({"proc/self/stat": "", "proc/self/io": "denied\n"}, own=3))
    assert (facts.rss_anon, facts.minor_faults, facts.read_bytes, facts.swap) == (3 * M, None, None, None)


def test_without_proc_the_resource_module_helps(tmp_path):
    pytest.importorskip("resource")
    facts = process_memory(tmp_path)
    assert facts.rss is None
    assert 5 * M < facts.peak_rss < 100 * G
    assert facts.minor_faults > 0


@pytest.mark.parametrize(("platform", "peak"), [("darwin", 7000), ("freebsd14", 7000 * 1024)])
def test_the_unit_of_the_peak_depends_on_the_system(tmp_path, monkeypatch, platform, peak):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(process.sys, "platform", platform)
    usage = type("Usage", (), {"ru_maxrss": 7000, "ru_minflt": 1, "ru_majflt": 2})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    assert process_memory(tmp_path).peak_rss == peak


def test_a_system_without_proc_and_resource(tmp_path, monkeypatch):
    """Windows: nothing is known, nothing fails, and the default is modest."""
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert process_memory(tmp_path) == process.ProcessMemory()
    facts = available_memory(tmp_path)
    assert (facts.total, facts.available, facts.limit, facts.cgroups) == (None, None, None, ())
    assert default_budget(tmp_path) == 2 * G
    assert check_budget(100 * G, tmp_path) == 100 * G


def test_a_system_that_only_knows_its_total(tmp_path, monkeypatch, caplog):
    """macOS: half of it is taken for free, and all of it is the most."""
    monkeypatch.setattr(memory, "_physical_bytes", lambda: 16 * G)
    assert default_budget(tmp_path) == 8 * G * 4 // 5
    assert check_budget(15 * G, tmp_path) == 15 * G
    assert check_budget(17 * G, tmp_path) < 16 * G
    assert "16.0 GiB" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells all of it")
def test_this_machine():
    facts, own = available_memory(), process_memory()
    assert 0 < facts.available <= facts.total
    assert 0 < default_budget() < facts.total
    assert 0 < own.rss_anon < own.rss
    assert own.peak_rss >= own.rss // 2  # the two are counted at different moments


@pytest.fixture
def cgroup():
    """A real control group that the test may make, with a limit of 192 MiB; skips elsewhere."""
    base = Path("/sys/fs/cgroup/memory")
    version, base = (1, base) if base.is_dir() else (2, base.parent)
    folder = base / f"ramforge_test_{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(192 * M))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder
    for _ in range(20):  # the kernel needs a moment to notice that the last process is gone
        with contextlib.suppress(OSError):
            folder.rmdir()
            break
        time.sleep(0.1)


INSIDE = """
import json, sys
from pathlib import Path
(Path(sys.argv[1]) / "cgroup.procs").write_text("0")
from ramforge_core.system import available_memory, check_budget, default_budget
def facts():
    now = available_memory()
    return {"limit": now.limit, "available": now.available, "usage": now.cgroups[0].usage, "default": default_budget()}
before = facts()
data = open(sys.argv[2], "rb", buffering=0)
while data.read(1 << 20):
    pass
print(json.dumps([before, facts(), check_budget(4 << 30)]))
"""


def test_e04_e06_in_a_real_cgroup(cgroup, tmp_path):
    """Reading 128 MiB through the page cache of a group of 192 MiB changes what it holds, not what it can give."""
    big = tmp_path / "big"
    with big.open("wb") as stream:
        for _ in range(128):
            stream.write(os.urandom(M))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(
            stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # cached pages stay charged to this group
    run = subprocess.run(
        [sys.executable, "-c", INSIDE, str(cgroup), str(big)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    before, after, clamped = json.loads(run.stdout)
    assert before["limit"] == after["limit"] == 192 * M
    assert after["usage"] > before["usage"] + 100 * M
    assert after["available"] == pytest.approx(before["available"], abs=8 * M)
    assert after["default"] == pytest.approx(before["default"], abs=8 * M)
    assert 120 * M < clamped < 192 * M
    assert "4.00 GiB" in run.stderr
    assert "192 MiB" in run.stderr


def test_time_that_threads_waited_for_a_processor(tmp_path):
    for thread, text in (("7", "100 2000000000 9"), ("8", "5 500000000 1"), ("9", "garbage")):
        folder = tmp_path / "proc/self/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text + "\n")
    assert waited_s(tmp_path) == 2.5
    assert waited_s(tmp_path / "elsewhere") == 0
    assert waited_s() >= 0
