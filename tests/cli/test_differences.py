"""Git applies the patch: any line ends, odd separators inside of lines, new, removed and open-ended files."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_new import git

from scaffold.changes import FileChange
from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences

LINES = b"".join(b"line %d\n" % number for number in range(20))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LINES, LINES.replace(b"line 3\n", b"line three\n").replace(b"line 17\n", b"")),
        (LINES.replace(b"\n", b"\r\n"), LINES.replace(b"\n", b"\r\n").replace(b"line 3", b"line three")),
        (b"a\x0cb\nc\xe2\x80\xa8d\x1ce\n", b"a\x0cb\nnew \x85\n".decode("latin-1").encode() + b"c\xe2\x80\xa8d\x1ce\n"),
        (b"old \x1b[31m\n", b"new \x1b[31m\n"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nc"),
        (b"a\nb", b"a\nc"),
        (b"", b"a\n"),
        (None, b"a\nb\n"),
        (b"a\nb\n", None),
    ],
)
def test_git_applies_the_patch(tmp_path: Path, capfdbinary, before, after):
    git(tmp_path, "init", "-q")
    file = tmp_path / "folder" / "file.py"
    file.parent.mkdir()
    if before is not None:
        file.write_bytes(before)

    show_differences(Console(), [FileChange("folder/file.py", before, after)])

    patch = tmp_path / "a.patch"
    patch.write_bytes(capfdbinary.readouterr().out)
    git(tmp_path, "apply", patch.name)
    assert (file.read_bytes() if file.exists() else None) == after
