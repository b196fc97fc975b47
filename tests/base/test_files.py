"""Tests of the files that convt and its benchmark write: links, pipes, terminals, permissions, errors, and locks."""

import ast
import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from cases import ROOT, child, needs_checkout

from convt._base import files

POSIX = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")


@pytest.fixture
def public():
    """Yield a folder that every user may write to, because `as_nobody` gives up the rights of root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def as_nobody(script, *arguments):
    """Run a script that has ``files``, in a process without the rights of root, which may write to any file."""
    start = "import fcntl, os, sys; from convt._base import files\nif os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"
    return child(start + script, *arguments)


def left(folder):
    return sorted(os.listdir(folder))


def test_a_new_file_has_the_permissions_of_the_umask_which_does_not_change(tmp_path):
    script = """
import os, sys
from convt._base import files
os.umask(0o027)
def changed(*_):
    raise AssertionError("the umask is that of the whole process")
os.umask = changed
files.write(sys.argv[1], "text")
print(oct(os.stat(sys.argv[1]).st_mode))
"""
    assert child(script, tmp_path / "new") == (0, "0o100640\n", "")
    assert left(tmp_path) == ["new"]


@pytest.mark.parametrize("content", ["Größe\n", b"\x00\xff"])
def test_an_existing_file_keeps_its_permissions(tmp_path, content):
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o640)
    before = path.stat()
    files.write(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and path.stat().st_ino != before.st_ino
    assert left(tmp_path) == ["old"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_an_existing_file_keeps_its_owner(tmp_path):
    path = tmp_path / "old"
    path.write_text("old")
    os.chown(path, 1234, 5678)
    files.write(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid, path.read_text()) == (1234, 5678, "new")


@POSIX
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path, exists):
    (tmp_path / "there").mkdir()
    file, link, again = tmp_path / "there/file", tmp_path / "link", tmp_path / "again"
    if exists:
        file.write_text("old")
    link.symlink_to("there/file")
    again.symlink_to(link)
    files.check(again)
    assert file.exists() == exists
    files.write(again, "new")
    assert again.is_symlink() and link.is_symlink() and not file.is_symlink() and file.read_text() == "new"
    assert left(tmp_path) == ["again", "link", "there"] and left(tmp_path / "there") == ["file"]


@POSIX
def test_a_link_to_itself_is_an_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for attempt in (files.check, lambda path: files.write(path, "new")):
        with pytest.raises(OSError, match=r"loop'$"):
            attempt(tmp_path / "loop")
    assert left(tmp_path) == ["loop"]


@POSIX
def test_a_pipe_gets_the_text(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    files.check(pipe)  # does not wait for a reader
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    files.write(pipe, "text")
    reader.join(30)
    assert found == ["text"] and stat.S_ISFIFO(pipe.stat().st_mode) and not files.is_replaced(pipe)
    assert left(tmp_path) == ["pipe"]


@POSIX
def test_a_device_stays_one(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.stat("/dev/null").st_rdev)
        files.write(device, "text")
    except OSError as error:
        pytest.skip(f"cannot make a device: {error}")
    files.check(device)
    assert stat.S_ISCHR(device.stat().st_mode) and left(tmp_path) == ["null"] and not files.is_replaced(device)


def test_a_terminal_gets_the_text():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    try:
        files.write(os.ttyname(theirs), "text")
        assert os.read(ours, 10) == b"text"
    finally:
        os.close(ours), os.close(theirs)


_TO_STDOUT = """
import sys
from convt._base import files
print("before")
files.check(sys.argv[1])
files.write(sys.argv[1], "text\\n")
print("after")
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux")
def test_text_for_standard_output_comes_between_the_other_output(tmp_path):
    link, path, wanted = tmp_path / "stdout", tmp_path / "out", "before\ntext\nafter\n"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout
    assert child(_TO_STDOUT, link) == (0, wanted, "")
    for name in (link, path):  # a file into which a shell redirects
        with path.open("w") as out:
            subprocess.run([sys.executable, "-c", _TO_STDOUT, name], stdout=out, check=True, cwd=ROOT)
        assert path.read_text() == wanted
    assert left(tmp_path) == ["out", "stdout"] and link.is_symlink()


@POSIX
def test_a_write_protected_file_is_refused(public):
    path = public / "file"
    path.write_text("old")
    path.chmod(0o444)
    for call in ("check(sys.argv[1])", "write(sys.argv[1], 'new')"):
        code, _, errors = as_nobody("files." + call, path)
        assert code == 1 and errors.endswith(f"PermissionError: [Errno 13] Permission denied: '{path}'\n")
    assert path.read_text() == "old" and left(public) == ["file"]


@POSIX
def test_a_file_in_a_folder_that_takes_no_new_files_is_written_in_place(public):
    path = public / "file"
    path.write_text("old and longer")
    path.chmod(0o666)
    public.chmod(0o555)
    number = path.stat().st_ino
    script = "files.check(sys.argv[1])\nwith files.locked(sys.argv[1]): files.write(sys.argv[1], 'new')"
    assert as_nobody(script, path) == (0, "", "")
    assert (path.read_text(), path.stat().st_ino) == ("new", number)
    for call in ("check(sys.argv[1])", "write(sys.argv[1], 'new')"):
        code, _, errors = as_nobody("files." + call, public / "other")
        assert code == 1 and errors.endswith(f"PermissionError: [Errno 13] Permission denied: '{public}/other'\n")
    public.chmod(0o777)
    assert left(public) == ["file"]


@pytest.mark.parametrize("name, error", [
    ("nowhere/file", FileNotFoundError), ("nowhere/", FileNotFoundError), ("", FileNotFoundError), (".", IsADirectoryError),
    ("file/below", NotADirectoryError), ("n" * 300, OSError),
])  # fmt: skip
def test_what_can_not_be_written_is_named(tmp_path, monkeypatch, name, error):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("old")
    for attempt in (files.check, lambda path: files.write(path, "new")):
        with pytest.raises(error) as refused:
            attempt(name)
        assert refused.value.filename == name
    assert left(".") == ["file"] and Path("file").read_text() == "old"


def test_a_name_may_be_as_long_as_the_file_system_permits(tmp_path):
    path = tmp_path / ("n" * 255)
    for text in ("one", "two"):
        with files.locked(path):
            files.write(path, text)
    assert path.read_text() == "two" and left(tmp_path) == [path.name]


@pytest.mark.parametrize("at", ["replace", "chmod"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, at):
    def fails(*_):
        raise OSError(errno.ENOSPC, "no space")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, at, fails)
    with pytest.raises(OSError, match="No space left on device: .*file'$"):
        files.write(path, "new")
    assert path.read_text() == "old" and left(tmp_path) == ["file"]


def test_a_lock_is_waited_for(tmp_path):
    path, order = tmp_path / "file", []

    def second():
        with files.locked(path):
            order.append("second")

    with files.locked(path):
        assert left(tmp_path) == ["file.lock"]
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.05)
        order.append("first")
    waiting.join(30)
    assert order == ["first", "second"] and left(tmp_path) == []


@pytest.mark.parametrize("dangling", [False, True])
def test_a_lock_that_a_killed_process_left_is_removed(tmp_path, monkeypatch, dangling):
    monkeypatch.setattr(files, "STALE", 0.1)
    (tmp_path / "file.lock").symlink_to("nowhere") if dangling else (tmp_path / "file.lock").touch()
    begin = time.monotonic()
    with files.locked(tmp_path / "file"):
        assert time.monotonic() - begin > 0.1
    assert left(tmp_path) == []


@POSIX
def test_two_names_of_a_file_have_one_lock(tmp_path):
    (tmp_path / "link").symlink_to("file")
    with files.locked(tmp_path / "link"):
        assert (tmp_path / "file.lock").exists()


def refuses(type, text, why):
    argparse = pytest.importorskip("argparse")
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        type(text)
    assert str(refused.value) == f"got {text!r}, wanted a file that can be written ({why})"


def test_arguments_are_refused_before_anything_else(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    assert files.argument(str(file)) == str(file) and files.argument(f"{file}2") == f"{file}2"
    refuses(files.argument, f"{tmp_path}/no/file", "No such file or directory")
    refuses(files.argument, str(tmp_path), "Is a directory")
    refuses(files.argument, "a\0b", "embedded null byte")
    assert left(tmp_path) == ["file"]


@needs_checkout
def test_one_function_writes_the_files_of_the_package_and_the_benchmark():
    """Check that no other code opens a file to write, replaces one or changes the umask."""
    writers = set()
    for path in [*ROOT.glob("convt/**/*.py"), *ROOT.glob("bench/**/*.py")]:
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name, modes = ast.unparse(call.func), [each.value for each in call.args if isinstance(each, ast.Constant)]
            if re.search(r"write_text|write_bytes|mkstemp|os\.(umask|replace|rename)", name) or (
                name.endswith("open") and any(re.fullmatch("[wax]b?", str(mode)) for mode in modes)
            ):
                writers.add(path.relative_to(ROOT).as_posix())
    logs, temporary = {"bench/recorded.py"}, {"bench/published.py", "bench/peers/mnn.py"}
    assert writers == {"convt/_base/files.py"} | logs | temporary
