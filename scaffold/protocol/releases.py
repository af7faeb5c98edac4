"""Fetches release trees by name from the user's package index, checks and unpacks them once, and keeps them in a cache.

Layout of the cache (`VITCG_CACHE_DIR`, else the user's cache folder):

* `trees/vllm-X.Y.Z/`: a complete tree. It appears by one rename, and nothing writes into it afterwards.
* `downloads/`: sdists on their way. A finished one survives a killed run; the next run checks it and uses it again.
* `seals/vllm-X.Y.Z.json`: the digests of the tree after unpacking. Each later use compares them (`seal`).
* `lab-bytecode/` and `proofs/` belong to `scaffold.verify`.
* `locks/vllm-X.Y.Z.lock`: one run at a time fetches a release.

Only this module and `index` use the network.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.cache import PROJECT, cache_root, checked_tree, known_digest, made_folder, seal_file
from scaffold.protocol.index import (
    HTTP_TIMEOUT,
    Sdist,
    choose_sdist,
    local_path,
    offered_sdists,
    open_session,
    read_settings,
    reason,
    stable_versions,
)
from scaffold.protocol.seal import digest_of, seal_tree
from scaffold.protocol.tree import is_tree

if TYPE_CHECKING:
    import requests

_LOCK_TIMEOUT = 900.0
#: vLLM 0.33 unpacks to 130 MB in 8,500 files.
_MAX_ARCHIVE = 200 << 20
_MAX_BYTES = 400 << 20
_MAX_FILES = 50_000

#: Gets the bytes so far, and the total if the index tells it.
DownloadProgress = Callable[[int, "int | None"], None]


def fetch_release(version: str, *, progress: DownloadProgress | None = None) -> Path:
    """The folder of a release's source tree, from the cache or the index. Never write into it.

    `version` as the index spells it (`0.22.0`). `progress(done, total)` counts bytes of the download.

    Raises DiagnosticError: VCG403 (no such release), VCG404 (no index can be reached), VCG405 (digest differs, or is
    not given), VCG406 (the archive is damaged or unsafe), VCG407 (the cached tree was changed). The cache adds VCG711
    (it cannot be written), VCG712 (others can write it), VCG408 (another run holds its lock).
    """
    found = checked_tree(version)
    if found is not None:
        return found
    from filelock import FileLock, Timeout

    root = cache_root()
    with _write_errors(root, "set `VITCG_CACHE_DIR` to another folder"):
        for folder in ("trees", "downloads", "locks"):
            made_folder(folder)
        lock = FileLock(root / "locks" / f"{PROJECT}-{version}.lock", timeout=_LOCK_TIMEOUT)
        try:
            with lock:
                return checked_tree(version) or _fetch(version, root, progress)
        except Timeout as error:
            raise DiagnosticError.of(
                "VCG408",
                f"another run has been fetching vLLM {version} for {_LOCK_TIMEOUT / 60:.0f} minutes",
                help=f"wait for it, or end it; its lock is `{lock.lock_file}`",
            ) from error


def unpack_release(version: str, destination: Path, *, progress: DownloadProgress | None = None) -> Path:
    """Copy a release's tree to `destination`, where the user may change it. Returns `destination`.

    The copy appears by one rename. Raises VCG409 when `destination` exists and is not an empty folder, VCG711 when
    it cannot be written, and the errors of `fetch_release`.
    """
    source = fetch_release(version, progress=progress)
    with _write_errors(destination, "name another folder with --into"):
        if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
            raise DiagnosticError.of(
                "VCG409",
                f"`{destination}` exists and is not an empty folder",
                help="name a folder that does not exist yet, or empty this one",
            )
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as scratch:
            copy = Path(scratch) / "tree"
            # Nobody checks the bytecode in a tree. A copy would run it: it has the times of its source.
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            for folder, _, files in os.walk(copy):
                for path in (Path(folder), *(Path(folder, name) for name in files)):
                    if not path.is_symlink():
                        path.chmod(path.stat().st_mode | 0o200)
            if destination.exists():
                destination.rmdir()
            copy.rename(destination)
    return destination


def stable_releases() -> list[str]:
    """The stable releases that the user's indexes offer as sdists, oldest first, without yanked ones.

    Raises VCG404 when no index can be reached.
    """
    settings = read_settings()
    with open_session(settings) as session:
        return stable_versions(offered_sdists(settings, session))


def _fetch(version: str, root: Path, progress: DownloadProgress | None) -> Path:
    """Under the lock: find, download, check, unpack, rename."""
    settings = read_settings()
    with open_session(settings) as session:
        chosen = choose_sdist(version, offered_sdists(settings, session))
        archive = root / "downloads" / f"{PROJECT}-{version}.tar.gz"
        if not (archive.is_file() and chosen.digests and _digest_error(archive, chosen) is None):
            _download(chosen, archive, session, progress)
    tree = root / "trees" / f"{PROJECT}-{version}"
    for leftover in tree.parent.glob(f".{tree.name}-*"):  # a killed run left it; we hold its lock now
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{tree.name}-", dir=tree.parent) as scratch:
        unpacked = _unpack(archive, Path(scratch), version)
        contents = digest_of(unpacked)
        if contents != (known_digest(version) or contents):
            archive.unlink()
            raise DiagnosticError.of(
                "VCG405",
                f"`{chosen.filename}` is not the vLLM {version} that this tool knows: its files differ",
                help="name an index that serves vLLM's own sdist; to use another build, unpack it and give its "
                "folder, `--vllm PATH`",
            )
        if tree.exists():  # it is incomplete or of unknown origin, or we would have used it
            shutil.rmtree(tree)
        seal_file(version).unlink(missing_ok=True)
        unpacked.rename(tree)
    seal_tree(tree, seal_file(version), contents)
    archive.unlink(missing_ok=True)
    return tree


def _download(chosen: Sdist, archive: Path, session: requests.Session, progress: DownloadProgress | None) -> None:
    """Stream the sdist to disk and check its digest. It gets its final name only after that."""
    from requests import RequestException

    _require_trusted(chosen)
    partial = archive.with_name(archive.name + ".part")
    partial.unlink(missing_ok=True)  # do not follow a link in its place
    try:
        with partial.open("xb") as stream:
            if chosen.url.startswith("file:"):
                source = local_path(chosen.url)
                with source.open("rb") as local:
                    _copy(iter(lambda: local.read(1 << 18), b""), stream, source.stat().st_size, progress)
            else:
                with session.get(chosen.url, stream=True, timeout=HTTP_TIMEOUT) as response:
                    response.raise_for_status()
                    size = response.headers.get("Content-Length", "")
                    total = int(size) if size.isdigit() and "Content-Encoding" not in response.headers else None
                    _copy(response.iter_content(1 << 18), stream, total, progress)
    except RequestException as error:
        partial.unlink(missing_ok=True)
        raise DiagnosticError.of(
            "VCG404",
            f"the download of `{chosen.filename}` failed: {reason(error)}",
            help="run the command again; check the network and the index settings if it fails again",
        ) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if chosen.digests:
        difference = _digest_error(partial, chosen)
        if difference is not None:
            partial.unlink(missing_ok=True)
            raise DiagnosticError.of(
                "VCG405",
                f"`{chosen.filename}` is not the file that the index promises: {difference}",
                help="run the command again; if it happens again, a proxy or mirror changes it",
            )
    partial.replace(archive)


def _require_trusted(chosen: Sdist) -> None:
    """Refuse files from the network without a digest, and web pages that name files of this machine."""
    scheme = urlsplit(chosen.url).scheme
    if scheme not in ("http", "https", *(("file",) if chosen.local else ())):
        why = f"points to a `{scheme}:` address, which only a folder of yours may do"
    elif scheme != "file" and not chosen.digests:
        why = "gives no digest, so nobody could tell whether it is the right file"
    else:
        return
    raise DiagnosticError.of(
        "VCG405",
        f"the index is not trusted with `{chosen.filename}`: it {why}",
        help="use an index that gives SHA-256 digests, or download the sdist yourself and name its folder in "
        "`PIP_FIND_LINKS`",
    )


def _copy(chunks: Iterator[bytes], stream: Any, total: int | None, progress: DownloadProgress | None) -> None:
    done = 0
    for chunk in chunks:
        stream.write(chunk)
        done += len(chunk)
        if done > _MAX_ARCHIVE:
            raise DiagnosticError.of(
                "VCG406",
                f"the sdist has more than {_MAX_ARCHIVE >> 20} MB",
                help="check the index settings: no release of vLLM is that large",
            )
        if progress is not None:
            progress(done, total)


def _digest_error(path: Path, candidate: Sdist) -> str | None:
    """The difference of the file's digest to the promised one, None if they agree. `hashlib` must know the digest."""
    for name in ("sha512", "sha256", "sha384", "sha224"):
        expected = candidate.digests.get(name)
        if expected:
            digest = hashlib.new(name)
            with path.open("rb") as stream:
                for chunk in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(chunk)
            actual = digest.hexdigest()
            return None if actual == expected.lower() else f"{name} is {actual}, promised was {expected}"
    return f"no strong digest is given ({', '.join(candidate.digests) or 'none'})"


def _unpack(archive: Path, scratch: Path, version: str) -> Path:
    """Unpack into `scratch` and return the top folder. Raises VCG406."""

    def damaged(why: str) -> DiagnosticError:
        return DiagnosticError.of(
            "VCG406",
            f"`{archive.name}` cannot be unpacked: {why}",
            help="run the command again to fetch it anew; if it happens again, the index serves a damaged file",
        )

    if not hasattr(tarfile, "data_filter"):
        raise damaged("this Python cannot unpack archives safely; use 3.10.12, 3.11.4, 3.12 or newer")
    before = os.umask(0)
    os.umask(before | 0o022)  # else folders would let the user's group write
    try:
        with _Stream(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            tar.extractall(scratch, filter=_Limits())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        archive.unlink(missing_ok=True)
        raise damaged(str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno is None:  # gzip reports a damaged stream as an OSError without a number
            archive.unlink(missing_ok=True)
            raise damaged(str(error)) from error
        raise
    finally:
        os.umask(before)
    tops = [path for path in scratch.iterdir() if path.is_dir()]
    if len(tops) != 1 or not is_tree(tops[0]):
        archive.unlink(missing_ok=True)
        raise damaged(f"it does not hold a vLLM {version} source tree")
    return tops[0]


class _Stream(gzip.GzipFile):
    """An unpacked archive with a limit of bytes: a megabyte may unpack to a gigabyte."""

    def read(self, size: int | None = -1) -> bytes:
        self._require(self.tell() + (size if size is not None and size >= 0 else _MAX_BYTES))
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._require(offset)
        return super().seek(offset, whence)

    def _require(self, end: int) -> None:
        if end > _MAX_BYTES:
            raise tarfile.ReadError(f"it unpacks to more than {_MAX_BYTES >> 20} MB")


class _Limits:
    """Python's own filter of safe members, and limits on all of them."""

    def __init__(self) -> None:
        self._files = self._bytes = 0

    def __call__(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        self._files += 1
        self._bytes += member.size  # a sparse file may be larger than the archive
        if self._files > _MAX_FILES or self._bytes > _MAX_BYTES:
            raise tarfile.ReadError(f"it has more than {_MAX_FILES:,} files or {_MAX_BYTES >> 20} MB")
        return tarfile.data_filter(member, path)


@contextmanager
def _write_errors(root: Path, way_out: str) -> Iterator[None]:
    """Turns an operating system's refusal to write under `root` into VCG711."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = "a release needs about 250 MB there; free some space" if full else "check the folder's permissions"
        raise DiagnosticError.of(
            "VCG711", f"cannot write under `{root}`: {error.strerror or error}", help=f"{cause}, or {way_out}"
        ) from error
