"""Finds releases: reads the package indexes and folders of the user's pip or uv setup, and the sdists there."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.cache import PROJECT

if TYPE_CHECKING:
    import requests
    from packaging.version import Version
    from pypi_simple import DistributionPackage, ProjectPage

#: Seconds to connect, and to wait for the next bytes.
HTTP_TIMEOUT = (15.0, 120.0)
_DEFAULT_INDEX = "https://pypi.org/simple/"


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """The sources of packages that the user has set up for pip or uv. The first index has precedence."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    certificates: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Sdist:
    """One sdist that an index or a folder offers. `local`: it comes from a folder or a page of the user's own disk."""

    version: str
    filename: str
    url: str
    digests: dict[str, str] = field(default_factory=dict)
    yanked: bool = False
    local: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Every sdist on offer, folders first, then the indexes in order.

    `failures` are the indexes that did not answer, each with the reason.
    """

    sdists: tuple[Sdist, ...]
    failures: tuple[str, ...] = ()


def read_settings(environ: dict[str, str] | None = None) -> IndexSettings:
    """The user's index settings: environment variables of pip and uv, then pip's configuration files.

    Indexes: `PIP_INDEX_URL`, `UV_DEFAULT_INDEX`, `UV_INDEX_URL`, pip's `index-url`, else the public index; then the
    extra ones. `find-links` folders come first, since they need no network. `PIP_NO_INDEX` and `UV_OFFLINE` switch the
    indexes off.
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
            continue  # pip itself will report the error
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
    is_mac = sys.platform == "darwin"
    shared = ["/Library/Application Support"] if is_mac else []
    shared += env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    own = [home / "Library" / "Application Support"] if is_mac else []
    own.append(Path(env.get("XDG_CONFIG_HOME") or home / ".config"))
    return [
        *(Path(folder, "pip", "pip.conf") for folder in shared),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        *(folder / "pip" / "pip.conf" for folder in own),
        Path(sys.prefix, "pip.conf"),
        *([Path(override)] if override else []),
    ]


def offered_sdists(settings: IndexSettings, session: requests.Session) -> Offer:
    """Ask the folders and indexes of `settings`. Raises VCG404 if nothing is on offer and an index is missing."""
    from pypi_simple import NoSuchProjectError
    from requests import RequestException

    found = [sdist for link in settings.find_links for sdist in _in_folder(link)]
    failures: list[str] = []
    for index in () if settings.offline else settings.indexes:
        try:
            page = _project_page(index, session)
        except NoSuchProjectError:
            continue
        except (RequestException, OSError, ValueError) as error:
            failures.append(f"{_without_secrets(index)}: {reason(error)}")
            continue
        if page is not None:
            local = index.startswith("file:")
            sdists = (item for item in page.packages if item.package_type == "sdist" and item.version)
            found += [_from_package(item, local=local) for item in sdists]
    if not found and (failures or settings.offline):
        raise DiagnosticError.of(
            "VCG404",
            "no package index can be reached to fetch a vLLM release",
            help="go online once (the release is cached then), set `PIP_INDEX_URL` to a mirror, name a folder with "
            "the sdist in `PIP_FIND_LINKS`, or give `--vllm PATH`",
            notes=tuple(failures) or ("the settings of pip or uv forbid the use of an index",),
        )
    return Offer(tuple(found), tuple(failures))


def _from_package(package: DistributionPackage, *, local: bool) -> Sdist:
    return Sdist(
        version=package.version or "",
        filename=package.filename,
        url=package.url,
        digests=dict(package.digests),
        yanked=package.is_yanked,
        local=local,
    )


def _project_page(index: str, session: requests.Session) -> ProjectPage | None:
    from pypi_simple import ProjectPage, PyPISimple

    if index.startswith("file:"):
        page = local_path(index) / PROJECT / "index.html"
        if not page.is_file():
            return None
        return ProjectPage.from_html(PROJECT, page.read_bytes(), base_url=page.as_uri())
    return PyPISimple(index, session=session).get_project_page(PROJECT, timeout=HTTP_TIMEOUT)


def _in_folder(link: str) -> Iterator[Sdist]:
    """The sdists in a `find-links` folder. Pages on the web count as indexes."""
    folder = local_path(link) if link.startswith("file:") else Path(link).expanduser()
    if "://" in link and not link.startswith("file:"):
        return
    for path in sorted(folder.glob(f"{PROJECT}-*.tar.gz")) if folder.is_dir() else ():
        version = path.name.removeprefix(f"{PROJECT}-").removesuffix(".tar.gz")
        yield Sdist(version, path.name, path.as_uri(), local=True)


def local_path(url: str) -> Path:
    """The path that a `file:` address means."""
    from urllib.request import url2pathname

    return Path(url2pathname(unquote(urlsplit(url).path)))


def choose_sdist(version: str, offer: Offer) -> Sdist:
    """The sdist of exactly this version; a yanked one only if there is no other. Raises VCG403."""
    from packaging.version import Version

    wanted = Version(version)
    matching = [sdist for sdist in offer.sdists if _version(sdist) == wanted]
    if matching:
        return min(matching, key=lambda sdist: sdist.yanked)
    stable = stable_versions(offer)
    near = _nearest(wanted, stable)
    known = f"{len(stable)}, from {stable[0]} to {stable[-1]}" if stable else "none"
    raise DiagnosticError.of(
        "VCG403",
        f"there is no release `{version}` of vLLM",
        help=f"did you mean {' or '.join(f'`{item}`' for item in near)}?" if near else "name a stable release",
        notes=(f"stable releases on offer: {known}", *offer.failures),
    )


def stable_versions(offer: Offer) -> list[str]:
    """The stable releases on offer, oldest first, without yanked ones."""
    versions = {_version(sdist) for sdist in offer.sdists if not sdist.yanked}
    return [
        str(version)
        for version in sorted(filter(None, versions))
        if not (version.is_prerelease or version.is_postrelease)
    ]


def _version(sdist: Sdist) -> Version | None:
    """The version; None if the name has none, as in some old projects."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(sdist.version)
    except InvalidVersion:
        return None


def _nearest(wanted: Version, stable: Sequence[str], count: int = 3) -> list[str]:
    """The stable releases nearest by number (minor releases weigh more than patches), nearest first."""
    from packaging.version import Version

    def distance(text: str) -> tuple[int, int, int]:
        other = Version(text)
        return abs(other.major - wanted.major), abs(other.minor - wanted.minor), abs(other.micro - wanted.micro)

    newest_first = stable[::-1]  # the newer of two equally near ones wins
    near = sorted(newest_first, key=distance)
    meant = [item for item in (f"0.{wanted.major}.{wanted.minor}",) if item in stable]  # `22.0` for `0.22.0`
    return list(dict.fromkeys([*meant, *near]))[:count]


@contextmanager
def open_session(settings: IndexSettings) -> Iterator[requests.Session]:
    """One HTTP session for all requests of a run, with the user's certificates."""
    import requests

    with requests.Session() as session:
        if settings.certificates:
            session.verify = settings.certificates
        yield session


def _without_secrets(url: str) -> str:
    """An index address without user and password, fit for printing."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def reason(error: Exception) -> str:
    """The innermost reason of a network error; `requests` wraps several layers with the whole address in each."""
    innermost: BaseException = error
    while innermost.__cause__ is not None or innermost.__context__ is not None:
        innermost = innermost.__cause__ or innermost.__context__ or innermost
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return str(innermost) or type(innermost).__name__
