"""Reading files of trees that others made: only regular files are opened, so that no read waits for anybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """There is something, but no regular file: a folder, a pipe, a device."""


def read_regular(path: Path, *, limit: int = -1, follow: bool = True) -> bytes:
    """The bytes of a regular file, at most `limit` of them. A link is followed unless `follow` is false.

    Raises OSError, NotRegularError among them. A pipe is not waited for: opened as usual, it would be until somebody
    writes to it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as stream:  # noqa: PTH123 - of a descriptor
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise NotRegularError(number, "it is not a regular file", str(path))
        return stream.read(limit)
