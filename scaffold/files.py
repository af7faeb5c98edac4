"""Reading files of trees that others made: only regular files are opened, so that no read waits for anybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularError(OSError):
    """There is something, but no regular file: a folder, a pipe, a device."""


#: Bytes of the largest file that is read. vLLM's largest source file has a third of a million.
MAX_BYTES = 10_000_000


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, to be read in parts. A link is followed.

    Raises OSError, NotRegularError among them. A pipe is not waited for: opened as usual, it would be until somebody
    writes to it.
    """
    return open(_open(path, follow=True), "rb")


def read_regular(path: str | Path, *, limit: int = MAX_BYTES, follow: bool = True) -> bytes:
    """The bytes of a regular file. A link is followed unless `follow` is false.

    Raises OSError: NotRegularError; EFBIG for a file of more than `limit` bytes, whatever size it claims; and EAGAIN
    for one that would wait for somebody, as some files of /proc do that look regular.
    """
    descriptor = _open(path, follow)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1) if size <= limit else None
        while data is not None and len(data) <= limit:  # a file of /proc claims to be empty
            part = os.read(descriptor, 1 << 20)
            if not part:
                return data
            data += part
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    finally:
        os.close(descriptor)


def _open(path: str | Path, follow: bool) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise NotRegularError(number, "it is not a regular file", str(path))
