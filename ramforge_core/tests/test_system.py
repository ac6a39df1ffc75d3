"""`ramforge_core.system` on made-up cgroup and topology files."""

from __future__ import annotations

import pytest

from ramforge_core.system import cpu_quotas, default_threads, threads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that writes files below a fake root and says which processors the process may use."""

    def make(files=None, cpus=range(8)):
        monkeypatch.setattr(threads, "_affinity", lambda: set(cpus))
        for name, text in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def siblings(pairs):
    """Topology files for hyper-threads that share cores."""
    return {
        f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{pair[0]},{pair[1]}\n"
        for pair in pairs
        for n in pair
    }


def test_without_any_file_the_affinity_counts(machine):
    assert default_threads(machine(cpus=[0, 2, 5])) == 3


def test_this_machine_gives_a_sensible_number():
    assert default_threads() >= 1


@pytest.mark.parametrize(
    ("limit", "threads"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
    ],
)
def test_f01_cgroup_v2_quota(machine, limit, threads):
    files = {"proc/self/cgroup": "0::/box/inner\n", "sys/fs/cgroup/box/inner/cpu.max": limit + "\n"}
    assert default_threads(machine(files)) == threads


def test_the_tightest_level_of_a_cgroup_counts(machine):
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/cpu.max": "600000 100000\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
    }
    root = machine(files)
    assert cpu_quotas(root) == [6.0, 3.0]
    assert default_threads(root) == 3


def test_in_a_container_the_path_is_the_hosts_and_the_mount_counts(machine):
    files = {"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert default_threads(machine(files)) == 2


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("400000", 4), ("90000", 1)])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_f01_cgroup_v1_quota(machine, quota, threads, mount):
    files = {
        "proc/self/cgroup": f"5:memory:/box\n4:{mount}:/box\n0::/\n",
        f"sys/fs/cgroup/{mount}/box/cpu.cfs_quota_us": quota + "\n",
        f"sys/fs/cgroup/{mount}/box/cpu.cfs_period_us": "100000\n",
    }
    assert default_threads(machine(files)) == threads


def test_hyper_threads_of_one_core_count_once(machine):
    assert default_threads(machine(siblings([(0, 4), (1, 5), (2, 6), (3, 7)]))) == 4


def test_f02_a_hybrid_uses_its_fast_cores(machine):
    files = {**siblings([(0, 1), (2, 3)]), "sys/devices/cpu_core/cpus": "0-3\n"}
    assert default_threads(machine(files, cpus=range(12))) == 2


def test_a_process_bound_to_slow_cores_uses_those(machine):
    assert default_threads(machine({"sys/devices/cpu_core/cpus": "0-3\n"}, cpus=[8, 9, 10])) == 3
