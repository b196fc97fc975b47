"""Tests of what limits this process: CPU quotas and memory limits of control groups, from made-up files of both versions and as
real ones where this machine permits them, and the places to which OpenMP binds threads."""

import contextlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from cases import child

import convt
from convt._run import config
from convt._run import cores as _cores

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


@pytest.mark.parametrize("quota, want", [("200000", [2]), ("-1", []), ("150000", [1]), ("20000", [1]), ("0", []), ("", [])])
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
def group_with(controller, version_1, version_2):
    """Make a control group with a limit, given as {file: text} for each version, and yield the start of a script that moves its
    process into the group. Skip the test if the machine does not permit it."""
    folders, name = (Path("/sys/fs/cgroup", controller), Path("/sys/fs/cgroup")), f"convt-test-{os.getpid()}"
    folder, limit = (folders[0], version_1) if folders[0].exists() else (folders[1], version_2)
    try:
        (folder / name).mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        try:
            for file, text in limit.items():
                (folder / name / file).write_text(text)
        except OSError as error:
            pytest.skip(f"cannot set a limit: {error}")
        yield f"import os\nopen('{folder / name / 'cgroup.procs'}', 'w').write(str(os.getpid()))\n"
    finally:
        (folder / name).rmdir()


def run_in_group(script):
    code, out, errors = child(script)
    if code and "PermissionError" in errors:
        pytest.skip("cannot move this process into a group")
    assert code == 0, errors
    return out


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.skipif(not convt.show_config(mode="dicts")["openmp"], reason="built without OpenMP")
def test_a_process_with_a_quota_uses_as_many_threads():
    with group_with("cpu", {"cpu.cfs_quota_us": "150000"}, {"cpu.max": "150000 100000"}) as start:
        out = run_in_group(start + _THREADS)
        assert out.startswith("1 a quota of 1.5 cores ("), out


@pytest.mark.parametrize("files, want", [
    ({"memory.max": "1000000000\n"}, "memory.max"),
    ({"memory.max": "max\n"}, None),
    ({"memory.max": ""}, None),
    ({}, None),
    ({"pod/memory.max": "3000", "memory.max": "max"}, "pod/memory.max"),
    ({"pod/memory.max": "3000", "memory.max": "2000"}, "memory.max"),
    ({"pod/memory.limit_in_bytes": "9223372036854771712"}, None),  # what version 1 has without a limit
    ({"pod/memory.limit_in_bytes": "4000"}, "pod/memory.limit_in_bytes"),
    ({"memory.limit_in_bytes": "5000"}, "memory.limit_in_bytes"),
])  # fmt: skip
def test_a_limit_of_memory_counts(tmp_path, files, want):
    """Check the limit of one of ``files``, or the machine's memory if ``want`` is None."""
    version_1 = any("limit_in_bytes" in name for name in files)
    folder = "memory/" if version_1 else ""
    groups = ["4:memory:/pod", "0::/"] if version_1 else ["0::/pod"]
    mounts = [VERSION_1.replace("cpu,cpuacct", "memory")] if version_1 else [VERSION_2]
    root = system(tmp_path, groups, mounts, **{folder + name: text for name, text in files.items()})
    size, text = config._memory(root)
    if want is None:
        assert size == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert text == f"the machine's {size} bytes of memory"
    else:
        path = root / "sys/fs/cgroup" / folder / want
        assert size == int(files[want]) and text == f"{size} bytes of memory, the limit of the control group ({path})"


def test_an_array_that_exceeds_the_limit_is_refused_until_the_limit_rises(tmp_path, monkeypatch):
    root, memory = system(tmp_path, ["0::/"], [VERSION_2], **{"memory.max": "1000000"}), config._memory
    monkeypatch.setattr(config, "_memory", lambda: memory(root))
    monkeypatch.setattr(config, "_most_bytes", 0)
    data, filter = np.ones((1, 500, 2), np.float32), np.ones((3, 2, 500), np.float32)
    calls = convt.ConvTranspose(filter), lambda data: convt.conv_transpose(data, filter)
    for call in calls:
        assert call(data[:, :9]).size
        with pytest.raises(MemoryError, match=r"^output: .* 1004000 bytes, wanted at most 1000000 bytes of memory, the limit"):
            call(data)
    (root / "sys/fs/cgroup/memory.max").write_text("2000000")
    for call in calls:
        assert call(data).nbytes == 1004000


def test_a_process_with_a_limit_of_memory_refuses_what_exceeds_it():
    size = 512 << 20
    script = """
import numpy as np, convt
try:
    convt.conv_transpose(np.ones((1, 9, 9, 1), "f4"), np.ones((3, 3, 1, 1), "f4"), strides=2000)
except MemoryError as error:
    print(error)
"""
    with group_with("memory", {"memory.limit_in_bytes": str(size)}, {"memory.max": str(size)}) as start:
        out = run_in_group(start + script)
        assert f" bytes, wanted at most {size} bytes of memory, the limit of the control group (/" in out


_THREADS = "import convt; print(convt.get_num_threads(), convt.show_config(mode='dicts')['threads set by'])"
TWO = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
ONE_PLACE = "the places of OpenMP (OMP_PLACES, OMP_PROC_BIND)"
needs_places = pytest.mark.skipif(
    len(TWO) < 2 or not convt.show_config(mode="dicts")["openmp"], reason="needs two cores, Linux and OpenMP"
)


@needs_places
@pytest.mark.parametrize("first", ["", "import numpy", "import torch"])
@pytest.mark.parametrize("settings, one", [
    ({"OMP_PROC_BIND": "true"}, False),
    ({"OMP_PROC_BIND": "close"}, False),
    ({"OMP_PROC_BIND": "spread", "OMP_PLACES": "threads"}, False),
    ({"OMP_PLACES": "cores"}, False),
    ({"OMP_PLACES": f"{{{TWO[0]}}},{{{TWO[-1]}}}"} if TWO else {}, False),
    ({"OMP_PLACES": f"{{{TWO[-1]}}}"} if TWO else {}, True),
    ({"OMP_PROC_BIND": "master"}, True),  # all threads share the place of the first
    ({"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}, False),
])  # fmt: skip
def test_a_bound_process_has_the_cores_of_its_places(first, settings, one):
    """Check the cores where OpenMP has bound the first thread to one of them, when convt or another package loaded it."""
    if first == "import torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    script = f"import os; os.sched_setaffinity(0, {TWO})\n{first}\n{_THREADS}"
    code, out, errors = child(script, **settings)
    assert code == 0, errors
    quota = min((cores.number for cores in _cores.quotas()), default=2)
    assert out.split()[0] == str(min(1 if one else 2, quota)), out
    if one and quota > 1:
        assert out.endswith(f"{ONE_PLACE}\n")


@needs_places
@pytest.mark.skipif(_cores.allowed().number < 2, reason="needs a quota of two cores")
def test_threads_of_a_bound_process_run_on_all_of_its_cores():
    script = f"""
import os; os.sched_setaffinity(0, {TWO})
import numpy as np, convt
convt.conv_transpose(np.ones((4, 64, 64, 64), "f4"), np.ones((4, 4, 64, 64), "f4"))
print(sorted(set().union(*(os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")))))
"""
    assert child(script, OMP_PROC_BIND="true", OPENBLAS_NUM_THREADS="1") == (0, f"{TWO}\n", "")
