"""Release trees: fetched by name from the user's package index, checked, unpacked once, and kept in the user cache.

Layout of the cache (`VITCG_CACHE_DIR`, else the user's cache folder):

    trees/vllm-X.Y.Z/        a complete tree; it appears by one rename and is never written afterwards
    downloads/               sdists on their way; a finished one survives a killed run and is checked and used again
    locks/vllm-X.Y.Z.lock    one run at a time fetches a release

This is the only module of the tool that uses the network.
"""

from __future__ import annotations

import configparser
import errno
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.target import is_tree

if TYPE_CHECKING:
    import requests
    from packaging.version import Version
    from pypi_simple import DistributionPackage, ProjectPage

PROJECT = "vllm"
_DEFAULT_INDEX = "https://pypi.org/simple/"
_LOCK_TIMEOUT = 900.0
_HTTP_TIMEOUT = (15.0, 120.0)

Progress = Callable[[int, "int | None"], None]


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Where packages come from, as the user has set it up for pip or uv. The first index has precedence."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    certificates: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One sdist that an index or a folder offers. `digests` may be empty for a file in a folder of the user's own."""

    version: str
    filename: str
    url: str
    digests: dict[str, str] = field(default_factory=dict)
    yanked: bool = False


def cache_root() -> Path:
    """`VITCG_CACHE_DIR`, else the user's cache folder of this tool."""
    override = os.environ.get("VITCG_CACHE_DIR")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("vitcg-scaffold", appauthor=False))


def cached_tree(version: str) -> Path | None:
    """The complete tree of a release in the cache, None when it was not fetched yet."""
    root = cache_root() / "trees" / f"{PROJECT}-{version}"
    return root if is_tree(root) else None


def fetch_release(version: str, *, progress: Progress | None = None) -> Path:
    """The folder of a release's source tree, fetched by name unless it is cached. Never write into it.

    `version` as the index spells it (`0.22.0`). `progress(done, total)` counts bytes of the download.

    Raises DiagnosticError: VCG403 (no such release), VCG404 (no index can be reached), VCG405 (digest differs),
    VCG406 (the archive is damaged or unsafe), VCG407 (the cache cannot be written),
    VCG408 (another run holds the lock).
    """
    found = cached_tree(version)
    if found is not None:
        return found
    from filelock import FileLock, Timeout

    root = cache_root()
    with _cache_errors(root):
        for folder in ("trees", "downloads", "locks"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / "locks" / f"{PROJECT}-{version}.lock", timeout=_LOCK_TIMEOUT)
        try:
            with lock:
                return cached_tree(version) or _fetch(version, root, progress)
        except Timeout as error:
            raise DiagnosticError(
                Diagnostic(
                    "VCG408",
                    f"another run has been fetching vLLM {version} for {_LOCK_TIMEOUT / 60:.0f} minutes",
                    help=f"wait for it, or end it; its lock is `{lock.lock_file}`",
                )
            ) from error


def unpack_release(version: str, destination: Path, *, progress: Progress | None = None) -> Path:
    """Copy a release's tree to `destination`, to be changed there. Returns `destination`.

    The copy appears by one rename. Raises VCG409 when `destination` exists and is not an empty folder, VCG407 when
    it cannot be written, and what `fetch_release` raises.
    """
    source = fetch_release(version, progress=progress)
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise DiagnosticError(
            Diagnostic(
                "VCG409",
                f"`{destination}` exists and is not an empty folder",
                help="name a folder that does not exist yet, or empty this one",
            )
        )
    with _cache_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as scratch:
            copy = Path(scratch) / "tree"
            shutil.copytree(source, copy, symlinks=True)
            for folder, _, files in os.walk(copy):
                for path in (Path(folder), *(Path(folder, name) for name in files)):
                    if not path.is_symlink():
                        path.chmod(path.stat().st_mode | 0o200)
            if destination.exists():
                destination.rmdir()
            copy.rename(destination)
    return destination


def stable_releases() -> list[str]:
    """The stable releases that the user's indexes offer as sdists, oldest first; yanked ones are left out.

    Raises VCG404 when no index can be reached.
    """
    settings = read_settings()
    with _session(settings) as session:
        return _stable(_candidates(settings, session))


def read_settings(environ: dict[str, str] | None = None) -> IndexSettings:
    """The user's index settings: environment variables of pip and uv, then pip's configuration files.

    Indexes: `PIP_INDEX_URL`, `UV_DEFAULT_INDEX`, `UV_INDEX_URL`, pip's `index-url`, else the public index; then the
    extra ones. `find-links` folders are searched first, they need no network. `PIP_NO_INDEX` and `UV_OFFLINE`
    switch the indexes off.
    """
    env = dict(os.environ) if environ is None else environ
    config = _pip_config(env)

    def first(*names: str, option: str) -> str | None:
        return next((env[name] for name in names if env.get(name)), config.get(option))

    main = first("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", option="index-url") or _DEFAULT_INDEX
    extra = [
        *(first("PIP_EXTRA_INDEX_URL", option="extra-index-url") or "").split(),
        *(env.get("UV_INDEX") or env.get("UV_EXTRA_INDEX_URL") or "").split(),
    ]
    links = first("PIP_FIND_LINKS", "UV_FIND_LINKS", option="find-links") or ""
    return IndexSettings(
        indexes=tuple(dict.fromkeys(_index_url(item) for item in (main, *extra))),
        find_links=tuple(links.replace(",", " ").split() if "UV_FIND_LINKS" in env else links.split()),
        certificates=first("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", option="cert"),
        offline=any(
            (value or "").lower() in ("1", "true", "yes", "on")
            for value in (first("PIP_NO_INDEX", option="no-index"), env.get("UV_OFFLINE"), env.get("UV_NO_INDEX"))
        ),
    )


def _index_url(text: str) -> str:
    """An index without uv's `name=` prefix, with the slash that relative links need."""
    head, separator, tail = text.partition("=")
    url = tail if separator and "://" in tail and "/" not in head else text
    return url if url.endswith("/") else url + "/"


def _pip_config(env: dict[str, str]) -> dict[str, str]:
    """pip's options that matter here: `[global]`, then `[install]`/`[download]`; a later file wins over an earlier."""
    parser = configparser.RawConfigParser()
    for path in _pip_config_files(env):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain about it
    options: dict[str, str] = {}
    for section in ("global", "install", "download"):
        if parser.has_section(section):
            options.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    return options


def _pip_config_files(env: dict[str, str]) -> list[Path]:
    """The files that pip reads, in its order: system, user, environment, `PIP_CONFIG_FILE`."""
    override = env.get("PIP_CONFIG_FILE")
    if override == os.devnull:
        return []
    home = Path(env.get("HOME") or Path.home())
    if sys.platform == "win32":
        system = [Path(env.get("PROGRAMDATA", r"C:\ProgramData"), "pip", "pip.ini")]
        user = [home / "pip" / "pip.ini", Path(env.get("APPDATA", str(home)), "pip", "pip.ini")]
        environment = Path(sys.prefix, "pip.ini")
    else:
        shared = "/Library/Application Support" if sys.platform == "darwin" else None
        system = [Path(shared, "pip", "pip.conf")] if shared else []
        system += [Path(folder, "pip", "pip.conf") for folder in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
        system.append(Path("/etc/pip.conf"))
        user = [home / ".pip" / "pip.conf"]
        if sys.platform == "darwin":
            user.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
        user.append(Path(env.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf"))
        environment = Path(sys.prefix, "pip.conf")
    return [*system, *user, environment, *([Path(override)] if override else [])]


def _fetch(version: str, root: Path, progress: Progress | None) -> Path:
    """Under the lock: find, download, check, unpack, rename."""
    settings = read_settings()
    with _session(settings) as session:
        candidates = _candidates(settings, session)
        chosen = _choose(version, candidates)
        archive = root / "downloads" / chosen.filename
        if not (archive.is_file() and chosen.digests and _digest_error(archive, chosen) is None):
            _download(chosen, archive, session, progress)
    tree = root / "trees" / f"{PROJECT}-{version}"
    for leftover in tree.parent.glob(f".{tree.name}-*"):  # of a run that was killed; we hold its lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{tree.name}-", dir=tree.parent) as scratch:
        unpacked = _unpack(archive, Path(scratch), version)
        if tree.exists():  # incomplete, otherwise it would have been used
            shutil.rmtree(tree)
        unpacked.rename(tree)
    archive.unlink(missing_ok=True)
    return tree


def _candidates(settings: IndexSettings, session: requests.Session) -> list[_Candidate]:
    """Every sdist on offer: folders first, then the indexes in order. Raises VCG404 when nothing answered."""
    from pypi_simple import NoSuchProjectError
    from requests import RequestException

    found: list[_Candidate] = []
    failures: list[str] = []
    answered = False
    for link in settings.find_links:
        found += _folder_candidates(link)
    for index in () if settings.offline else settings.indexes:
        try:
            page = _project_page(index, session)
        except NoSuchProjectError:
            answered = True
            continue
        except (RequestException, OSError, ValueError) as error:
            failures.append(f"{_without_secrets(index)}: {_reason(error)}")
            continue
        answered = True
        if page is not None:
            found += [_from_package(item) for item in page.packages if item.package_type == "sdist" and item.version]
    if not found and not answered:
        notes = tuple(failures) or ("the settings of pip or uv forbid the use of an index",)
        raise DiagnosticError(
            Diagnostic(
                "VCG404",
                "no package index can be reached to fetch a vLLM release",
                help="go online once (the release is cached then), set `PIP_INDEX_URL` to a mirror, name a folder with "
                "the sdist in `PIP_FIND_LINKS`, or give `--vllm PATH`",
                notes=notes,
            )
        )
    return found


def _from_package(package: DistributionPackage) -> _Candidate:
    return _Candidate(
        version=package.version or "",
        filename=package.filename,
        url=package.url,
        digests=dict(package.digests),
        yanked=package.is_yanked,
    )


def _project_page(index: str, session: requests.Session) -> ProjectPage | None:
    from pypi_simple import ProjectPage, PyPISimple

    if index.startswith("file:"):
        page = _local_path(index) / PROJECT / "index.html"
        if not page.is_file():
            return None
        return ProjectPage.from_html(PROJECT, page.read_bytes(), base_url=page.as_uri())
    return PyPISimple(index, session=session).get_project_page(PROJECT, timeout=_HTTP_TIMEOUT)


def _folder_candidates(link: str) -> Iterator[_Candidate]:
    """The sdists in a `find-links` folder. A page on the web is left to the indexes."""
    folder = _local_path(link) if link.startswith("file:") else Path(link).expanduser()
    if "://" in link and not link.startswith("file:"):
        return
    for path in sorted(folder.glob(f"{PROJECT}-*.tar.gz")) if folder.is_dir() else ():
        yield _Candidate(path.name.removeprefix(f"{PROJECT}-").removesuffix(".tar.gz"), path.name, path.as_uri())


def _local_path(url: str) -> Path:
    from urllib.request import url2pathname

    return Path(url2pathname(unquote(urlsplit(url).path)))


def _choose(version: str, candidates: list[_Candidate]) -> _Candidate:
    """The sdist of exactly this version; a yanked one is taken only when nothing else has it. Raises VCG403."""
    from packaging.version import InvalidVersion, Version

    def same(candidate: _Candidate) -> bool:
        try:
            return Version(candidate.version) == Version(version)
        except InvalidVersion:
            return False

    matching = sorted(filter(same, candidates), key=lambda candidate: candidate.yanked)
    if matching:
        return matching[0]
    stable = _stable(candidates)
    near = _nearest(version, stable)
    raise DiagnosticError(
        Diagnostic(
            "VCG403",
            f"there is no release `{version}` of vLLM",
            help=f"did you mean {' or '.join(f'`{item}`' for item in near)}?" if near else "check the version",
            notes=(f"the index has {len(stable)} stable releases, {stable[0]} to {stable[-1]}",) if stable else (),
        )
    )


def _stable(candidates: list[_Candidate]) -> list[str]:
    from packaging.version import InvalidVersion, Version

    versions: set[Version] = set()
    for candidate in candidates:
        try:
            version = Version(candidate.version)
        except InvalidVersion:
            continue
        if not candidate.yanked and not version.is_prerelease and not version.is_postrelease:
            versions.add(version)
    return [str(version) for version in sorted(versions)]


def _nearest(version: str, stable: list[str], count: int = 3) -> list[str]:
    """The stable releases nearest by number (minor releases weigh more than patches), nearest first."""
    from packaging.version import Version

    wanted = Version(version)

    def distance(text: str) -> tuple[int, int, int]:
        other = Version(text)
        return (
            abs(other.major - wanted.major),
            abs(other.minor - wanted.minor),
            abs(other.micro - wanted.micro),
        )

    newest_first = stable[::-1]  # of two equally near ones, the newer
    near = sorted(newest_first, key=distance)
    meant = [item for item in (f"0.{wanted.major}.{wanted.minor}",) if item in stable]  # `22.0` for `0.22.0`
    return list(dict.fromkeys([*meant, *near]))[:count]


def _download(chosen: _Candidate, archive: Path, session: requests.Session, progress: Progress | None) -> None:
    """Stream the sdist to disk and check its digest; nothing is kept under its final name before that."""
    from requests import RequestException

    partial = archive.with_name(archive.name + ".part")
    try:
        with partial.open("wb") as stream:
            if chosen.url.startswith("file:"):
                source = _local_path(chosen.url)
                with source.open("rb") as local:
                    _copy(iter(lambda: local.read(1 << 18), b""), stream, source.stat().st_size, progress)
            else:
                with session.get(chosen.url, stream=True, timeout=_HTTP_TIMEOUT) as response:
                    response.raise_for_status()
                    size = response.headers.get("Content-Length", "")
                    total = int(size) if size.isdigit() and "Content-Encoding" not in response.headers else None
                    _copy(response.iter_content(1 << 18), stream, total, progress)
    except RequestException as error:
        partial.unlink(missing_ok=True)
        raise DiagnosticError(
            Diagnostic(
                "VCG404",
                f"the download of `{chosen.filename}` failed: {_reason(error)}",
                help="run the command again; check the network and the index settings if it fails again",
            )
        ) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if chosen.digests:
        difference = _digest_error(partial, chosen)
        if difference is not None:
            partial.unlink(missing_ok=True)
            raise DiagnosticError(
                Diagnostic(
                    "VCG405",
                    f"`{chosen.filename}` is not the file that the index promises: {difference}",
                    help="run the command again; if it happens again, a proxy or mirror changes it",
                )
            )
    partial.replace(archive)


def _copy(chunks: Iterator[bytes], stream: Any, total: int | None, progress: Progress | None) -> None:
    done = 0
    for chunk in chunks:
        stream.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, total)


def _digest_error(path: Path, candidate: _Candidate) -> str | None:
    """Why the file's digest is not the promised one, None when it is. Needs a digest that `hashlib` knows."""
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

    def damaged(reason: str) -> DiagnosticError:
        return DiagnosticError(
            Diagnostic(
                "VCG406",
                f"`{archive.name}` cannot be unpacked: {reason}",
                help="run the command again to fetch it anew; if it happens again, the index serves a damaged file",
            )
        )

    if not hasattr(tarfile, "data_filter"):
        raise damaged("this Python cannot unpack archives safely; use 3.10.12, 3.11.4, 3.12 or newer")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        archive.unlink(missing_ok=True)
        raise damaged(str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno is None:  # gzip reports a damaged stream as an OSError without a number
            archive.unlink(missing_ok=True)
            raise damaged(str(error)) from error
        raise
    tops = [path for path in scratch.iterdir() if path.is_dir()]
    if len(tops) != 1 or not is_tree(tops[0]):
        archive.unlink(missing_ok=True)
        raise damaged(f"it does not hold a vLLM {version} source tree")
    return tops[0]


@contextmanager
def _session(settings: IndexSettings) -> Iterator[requests.Session]:
    import requests

    with requests.Session() as session:
        if settings.certificates:
            session.verify = settings.certificates
        yield session


@contextmanager
def _cache_errors(root: Path) -> Iterator[None]:
    """Turns an operating system's refusal to write under `root` into VCG407."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiagnosticError(
            Diagnostic(
                "VCG407",
                f"cannot write under `{root}`: {error.strerror or error}",
                help="a release needs about 250 MB there; free some space, or set `VITCG_CACHE_DIR` to another folder"
                if full
                else "check the folder's permissions, or set `VITCG_CACHE_DIR` to a folder that you may write",
            )
        ) from error


def _without_secrets(url: str) -> str:
    """An index address as it may be printed: without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    """The innermost reason of a network error; `requests` wraps several layers with the whole address in each."""
    innermost: BaseException = error
    while innermost.__cause__ is not None or innermost.__context__ is not None:
        innermost = innermost.__cause__ or innermost.__context__ or innermost
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return str(innermost) or type(innermost).__name__
