"""Tests of the number of threads that a control group's quota allows: made-up files of both versions of control groups, and a
real quota if this machine permits one."""

import contextlib
import os
from pathlib import Path

import pytest
from cases import child

import convt
from convt import _cores

VERSION_2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:5 - cgroup2 cgroup2 rw,nsdelegate"
VERSION_1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"


def system(tmp_path, groups, mounts, **files):
    """Make a root folder with these lines in /proc/self and these files in /sys/fs/cgroup."""
    for name, lines in (("cgroup", groups), ("mountinfo", mounts)):
        path = tmp_path / "proc/self" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "group, files, want",
    [
        ("/", {"cpu.max": "200000 100000\n"}, [2]),
        ("/", {"cpu.max": "max 100000\n"}, []),
        ("/", {"cpu.max": "250000 100000"}, [2]),  # rounded down
        ("/", {"cpu.max": "50000 100000"}, [1]),  # at least one
        ("/", {"cpu.max": "300000"}, [3]),  # a default period of 100 ms
        ("/", {"cpu.max": ""}, []),
        ("/", {"cpu.max": "much 100000"}, []),
        ("/", {"cpu.max": "100000 0"}, []),
        ("/", {}, []),
        ("/pod/one", {"pod/one/cpu.max": "max 100000", "pod/cpu.max": "400000 100000"}, [4]),  # from the parent group
        ("/pod/one", {"pod/one/cpu.max": "600000 100000", "pod/cpu.max": "400000 100000", "cpu.max": "900000"}, [6, 4, 9]),
        ("/../other", {"cpu.max": "700000 100000"}, [7]),  # a group outside the namespace: the mount shows its limits
        ("/pod", {"other/cpu.max": "100000 100000"}, []),
    ],
)
def test_version_2(tmp_path, group, files, want):
    root = system(tmp_path, [f"0::{group}"], [VERSION_2], **files)
    assert [cores.number for cores in _cores.quotas(root)] == want


@pytest.mark.parametrize(
    "quota, want", [("200000", [2]), ("-1", []), ("150000", [1]), ("20000", [1]), ("0", []), ("", [])],
)  # fmt: skip
@pytest.mark.parametrize("group", ["/", "/docker/abc"])
def test_version_1(tmp_path, quota, want, group):
    folder = "cpu,cpuacct" + ("" if group == "/" else group)
    files = {f"{folder}/cpu.cfs_quota_us": quota + "\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    root = system(tmp_path, ["5:cpu,cpuacct:" + group, "4:memory:/elsewhere", "0::/"], [VERSION_1, VERSION_2], **files)
    assert [cores.number for cores in _cores.quotas(root)] == want


def test_a_container_without_a_namespace_sees_its_own_group_at_the_mount_point(tmp_path):
    mount = VERSION_2.replace(" / ", " /docker/abc ")
    root = system(tmp_path, ["0::/docker/abc/inner"], [mount], **{"inner/cpu.max": "300000 100000", "cpu.max": "200000 100000"})
    assert [cores.number for cores in _cores.quotas(root)] == [3, 2]


def test_mount_points_with_spaces(tmp_path):
    root = system(tmp_path, ["0::/"], [VERSION_2.replace("/sys/fs/cgroup", "/sys/fs/control\\040groups")])
    path = root / "sys/fs/control groups/cpu.max"
    path.parent.mkdir(parents=True)
    path.write_text("200000 100000")
    assert [cores.number for cores in _cores.quotas(root)] == [2]


@pytest.mark.parametrize("lines", [["nonsense", "0::"], [""], ["0:"]])
def test_what_is_not_as_expected_sets_no_limit(tmp_path, lines):
    assert _cores.quotas(system(tmp_path, lines, [*lines, VERSION_2])) == []
    assert _cores.quotas(tmp_path / "nothing") == []


def test_the_fewest_cores_count(monkeypatch):
    monkeypatch.setattr(_cores, "quotas", lambda: [_cores.Cores(1, "a quota of 1 cores (here)")])
    found = _cores.allowed()
    assert found.number == 1
    monkeypatch.setattr(_cores, "quotas", lambda: [_cores.Cores(10**6, "a quota")])
    found = _cores.allowed()
    assert 1 <= found.number <= (os.cpu_count() or 1) and found.reason in ("affinity", "the machine's cores")


@pytest.mark.skipif(not convt.show_config(mode="dicts")["openmp"], reason="built without OpenMP")
def test_show_config_says_what_set_the_threads(monkeypatch):
    shown = lambda: convt.show_config(mode="dicts")["threads set by"]  # noqa: E731
    with convt.num_threads(2):
        assert shown() == "num_threads"
    script = "import convt; c = convt.show_config(mode='dicts'); print(c['threads'], c['threads set by'])"
    assert child(script, CONVT_NUM_THREADS="3")[1].strip() == "3 CONVT_NUM_THREADS"
    assert child(script, OMP_NUM_THREADS="5")[1].strip() == "5 OMP_NUM_THREADS"
    assert child("import convt; convt.set_num_threads(4)\n" + script)[1].strip() == "4 set_num_threads"
    fewest = child(script)[1].strip()
    assert fewest.startswith(f"{_cores.allowed().number} ") and fewest.endswith(_cores.allowed().reason)


@contextlib.contextmanager
def quota_of(cores):
    """Make a control group with a quota and yield the file that moves a process into it. Skip the test if the machine does not
    permit it."""
    version_1, version_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    one = (version_1 / "cpu.cfs_period_us").exists()
    folder = (version_1 if one else version_2) / f"convt-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        try:
            if one:
                (folder / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
            else:
                (folder / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
        except OSError as error:
            pytest.skip(f"cannot set a quota: {error}")
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.skipif(not convt.show_config(mode="dicts")["openmp"], reason="built without OpenMP")
def test_a_process_with_a_quota_uses_as_many_threads():
    with quota_of(1.5) as procs:
        script = f"""
import os
open({str(procs)!r}, "w").write(str(os.getpid()))
import convt
print(convt.get_num_threads(), convt.show_config(mode="dicts")["threads set by"])
"""
        code, out, errors = child(script)
        if code and "PermissionError" in errors:
            pytest.skip("cannot move this process into a group")
        assert code == 0, errors
        assert out.startswith("1 a quota of 1.5 cores ("), out
