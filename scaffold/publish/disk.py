"""The system calls that change the disk, one thin function each, and the few combinations of them that survive a crash.

Every change that this package makes goes through a name of this module, so a test can make each call fail, or kill the
process at it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

from scaffold.files import read_regular


def create(path: Path) -> int:
    """A new file for writing, with mode rw-rw-rw- less the umask."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write(descriptor: int, data: memoryview) -> int:
    return os.write(descriptor, data)


def fsync(descriptor: int) -> None:
    os.fsync(descriptor)


def chmod(path: Path, mode: int) -> None:
    path.chmod(mode)


def replace(source: Path, target: Path) -> None:
    source.replace(target)


def unlink(path: Path) -> None:
    path.unlink()


def mkdir(path: Path) -> None:
    path.mkdir()


def rmdir(path: Path) -> None:
    path.rmdir()


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def write_file(path: Path, data: bytes, *, like: Path | None = None, keep_time: bool = False) -> None:
    """Write a new file and force it to the disk, with the mode (and more, if possible) of `like`."""
    descriptor = create(path)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[write(descriptor, rest) :]
        if like is not None:
            _copy_attributes(like, path, keep_time=keep_time)
        fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_attributes(source: Path, target: Path, *, keep_time: bool) -> None:
    """Copy the mode, and owner, extended attributes and times where the system lets us."""
    status = source.stat()
    with contextlib.suppress(OSError):
        os.chown(target, status.st_uid, status.st_gid)
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
    chmod(target, stat.S_IMODE(status.st_mode))
    if not keep_time:  # new bytes with an old time would fool make and Python's bytecode cache
        os.utime(target)


def sync_directory(path: Path) -> None:
    """Force the names in a directory to the disk. It ignores file systems that cannot do so for directories."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_if_empty(path: Path) -> None:
    try:
        rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def read(path: Path) -> bytes | None:
    """The bytes of a regular file; None when there is none. It follows no link."""
    try:
        return read_regular(path, follow=False)
    except FileNotFoundError:
        return None


def device(path: Path) -> int:
    """The number of the file system that holds `path`; a rename cannot leave it."""
    return path.stat().st_dev


def has_other_names(path: Path) -> bool:
    """Whether a file has hard links beside this one."""
    return path.exists() and path.stat().st_nlink > 1


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
