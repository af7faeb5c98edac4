"""Reading files of trees that others made: only regular files are opened, so that no read waits for anybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """There is something, but no regular file: a folder, a pipe, a device."""


#: Bytes of the largest file that is read. vLLM's largest source file has a third of a million.
MAX_BYTES = 10_000_000


def read_regular(path: str | Path, *, limit: int = MAX_BYTES, follow: bool = True) -> bytes:
    """The bytes of a regular file. A link is followed unless `follow` is false.

    Raises OSError: NotRegularError; EFBIG for a file of more than `limit` bytes, whatever size it claims; and EAGAIN
    for one that would wait for somebody, as some files of /proc do that look regular.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(state.st_mode) else errno.EINVAL
            raise NotRegularError(number, "it is not a regular file", str(path))
        data = os.read(descriptor, state.st_size + 1) if state.st_size <= limit else None
        while data is not None and len(data) <= limit:  # a file of /proc claims to be empty
            part = os.read(descriptor, 1 << 20)
            if not part:
                return data
            data += part
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    finally:
        os.close(descriptor)
