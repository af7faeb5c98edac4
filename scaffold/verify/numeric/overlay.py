"""A release tree with some files replaced, made of symbolic links: cheap, and the pristine tree stays untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from scaffold.diagnostics import DiagnosticError


def build_overlay(
    tree: Path, overlay: Mapping[str, bytes], root: Path, beside: Sequence[tuple[str, Path]] = ()
) -> None:
    """Make `root/vllm` look like `tree/vllm` with the files of `overlay` replaced or added.

    The same for each package `beside` it, a name with its folder. Only directories on the way to a replaced file become
    real ones; everything else is a link. Replaced files outside of packages (tests, docs, examples) are not imported
    and are left out. Raises VCG663 for a path that leaves the tree and VCG656 when `tree` holds no `vllm` package.
    """
    package = (tree / "vllm").resolve()
    if not (package / "__init__.py").is_file():
        raise DiagnosticError.of(
            "VCG656", f"{tree} holds no vllm package", help="pass the root of an unpacked vLLM release"
        )
    root.mkdir(parents=True, exist_ok=True)
    replaced = {_parts(path): content for path, content in overlay.items()}
    for name, folder in (("vllm", package), *beside):
        inside = {parts[1:]: content for parts, content in replaced.items() if parts[0] == name and len(parts) > 1}
        if inside:
            _link_directory(folder.resolve(), root / name, inside)
        else:
            (root / name).symlink_to(folder.resolve(), target_is_directory=True)


def changed_modules(overlay: Mapping[str, bytes]) -> list[str]:
    """Names of the modules that an overlay replaces or adds; a tree's tests, docs and examples are none.

    Raises VCG663 for a path that leaves the tree.
    """
    paths = ["/".join(_parts(path)) for path in overlay]
    return [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in paths
        if path.endswith(".py") and not path.startswith(("tests/", "examples/"))
    ]


def _parts(path: str) -> tuple[str, ...]:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise DiagnosticError.of(
            "VCG663", f"overlay path {path!r} leaves the tree", help="use paths relative to the tree"
        )
    return parts


def _link_directory(source: Path, target: Path, replaced: Mapping[tuple[str, ...], bytes]) -> None:
    target.mkdir()
    below: dict[str, dict[tuple[str, ...], bytes]] = {}
    for parts, content in replaced.items():
        if len(parts) == 1:
            (target / parts[0]).write_bytes(content)
        else:
            below.setdefault(parts[0], {})[parts[1:]] = content
    for name, files in below.items():
        _link_directory(source / name, target / name, files)
    if not source.is_dir():
        return
    for entry in source.iterdir():
        link = target / entry.name
        if entry.name != "__pycache__" and not link.exists():
            link.symlink_to(entry, target_is_directory=entry.is_dir())
