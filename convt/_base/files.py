"""Files that convt and its benchmark write: whether they can be written, how, and by one process at a time.

This module imports no other module of convt, because the benchmark loads it by its path.
"""

import contextlib
import errno
import os
import stat
import sys
import time

# Errors of a folder in which no file may be made or replaced. A file in it can be writable, as one that is mounted by itself.
_FOLDER_REFUSES = {errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS}
# Seconds after which an unchanged lock counts as left behind by a process that was killed. Locks are held for milliseconds.
STALE = 10


def write(path, content):
    """Write text (as UTF-8) or bytes to a file: all or, after an error, nothing.

    A link stays a link, and the file behind it is written. An existing file keeps its permissions, and owner and group if the
    process may set them. Three kinds are written in place, where an error can leave a part: what is not a regular file, as a
    terminal or a pipe; the file that is standard output or standard error; a file whose folder takes no new files.
    """
    _write(path, content.encode("utf-8") if isinstance(content, str) else content)


def check(path):
    """Raise OSError if `write` cannot write to ``path``. The file is neither made nor changed."""
    _write(path, None)


def is_replaced(path):
    """Check whether a second `write` replaces what the first one wrote: not in a terminal or a pipe, for example."""
    status = _status(path)
    return status is None or (stat.S_ISREG(status.st_mode) and _stream(status) is None)


def argument(text, path=None, what="file"):
    """Return the name of a ``what`` that can be written, if necessary by ``path``, so that argparse refuses a wrong one."""
    import argparse  # imported here, because it is slow to load

    try:
        check(path or text)
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a {what} that can be written ({why})") from None
    return text


@contextlib.contextmanager
def locked(path):
    """Hold the lock of a file inside the block. A process that wants the same lock waits.

    One lock is a file beside it, because locks of the system do not reach other machines on every network file system. Another
    is the system's, for a file whose folder takes no new files or is not the one that the other process sees (containers).
    What is not a regular file has no lock.
    """
    with contextlib.ExitStack() as stack:
        if is_replaced(path):
            lock = f"{os.path.realpath(path)}.lock"
            if _make_lock(lock):
                stack.callback(_remove, lock)
            with contextlib.suppress(ImportError, OSError):  # Windows; no file yet, or a file system without locks
                import fcntl

                fcntl.flock(stack.enter_context(open(path, "rb+")), fcntl.LOCK_EX)
        yield


def _remove(path):
    with contextlib.suppress(OSError):
        os.unlink(path)


def _make_lock(lock):
    """Make a lock file as soon as there is none, and return True, or False if the folder takes no new files."""
    seen, since = None, 0.0
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                open(lock, "xb").close()
                return True
            with contextlib.suppress(FileNotFoundError):  # removed a moment ago
                now = os.lstat(lock).st_mtime_ns
                if now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() > since + STALE:
                    os.unlink(lock)
        except OSError:
            return False
        time.sleep(0.005)


def _write(path, data):
    """Write bytes to a file as `write` does, or only check that it is possible if ``data`` is None. Errors name ``path``."""
    try:
        status = _status(path)
        if is_replaced(path):
            target = os.path.realpath(path)
            if status is not None:
                os.close(os.open(target, os.O_WRONLY))  # fails for a write-protected file, which could be replaced
            try:
                return _replace(target, data, status)
            except OSError as error:
                if status is None or error.errno not in _FOLDER_REFUSES:
                    raise
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, "")
        if not os.access(path, os.W_OK):  # opening a pipe would wait for its reader
            raise OSError(errno.EACCES, "")
        if data is not None:
            _write_in_place(path, data, _stream(status))
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from None


def _replace(target, data, status):
    """Replace a file atomically, by a new one with the permissions in ``status``. Without ``data``, only try the folder."""
    temporary = os.path.join(os.path.dirname(target), f".convt-{os.urandom(8).hex()}")
    mode = 0o666 if status is None else stat.S_IMODE(status.st_mode) & 0o777
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if data is None:
                return
            if status is not None:
                for owner in ((-1, status.st_gid), (status.st_uid, -1)):
                    with contextlib.suppress(AttributeError, OSError):  # Windows has no owners
                        os.chown(temporary, *owner)
                os.chmod(temporary, mode)
            file.write(data)
        os.replace(temporary, target)
        temporary = None
    finally:
        if temporary is not None:
            _remove(temporary)


def _write_in_place(path, data, stream):
    """Write bytes to a file that exists: through ``stream`` if that is not None, so that later output comes behind them."""
    if stream is not None:
        stream.flush()
        with open(stream.fileno(), "wb", closefd=False) as file:
            file.write(data)
    else:  # without O_CREAT, with which Linux refuses another user's pipes in folders such as /tmp
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags & ~os.O_CREAT)) as file:
            file.write(data)


def _status(path):
    """Return the status of the file that ``path`` leads to, or None if there is none yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        if not os.path.basename(path):  # "" and "folder/" name no file
            raise
        return None


def _stream(status):
    """Return standard output or standard error if it is the file with this status, else None."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, closed, or without a descriptor
            if os.path.samestat(status, os.fstat(stream.fileno())):
                return stream
    return None
