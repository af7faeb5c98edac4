"""The last result of `verify` for a port in a tree, kept in the user's cache folder: `pr` tells it, and runs nothing.

A result is kept under a name that says which files ran, with everything else that it depends on. So another port or
another tree finds none, and of another torch or recipe `pr` says that nothing is proven.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import site
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scaffold
from scaffold.files import read_regular
from scaffold.protocol.cache import cache_folder, made_folder
from scaffold.protocol.seal import digest_as_run, digest_of_file, find_differences
from scaffold.verify.numeric.reports import SEARCHED, SETTINGS, NumericReport

if TYPE_CHECKING:
    from scaffold.descriptor.sections import Verify

_PACKAGE = "vllm/"
#: The packages that classes, processors and recipes compute with.
_COMPUTING = ("torch", "transformers", "tokenizers", "torchvision", "timm", "einops", "numpy", "pillow")
#: Files of a checkpoint that the lab never reads, and that take minutes to hash.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True)
class Basis:
    """All that a proof depends on beside the tree: what a user asked for, and facts by their names.

    `recipe` is a file, or what the lab calls another one. `values` are those of `--set`, as the lab gets them.
    """

    recipe: str
    config: str
    remote_code: bool
    values: Mapping[str, Any]
    facts: Mapping[str, str]

    @classmethod
    def today(
        cls,
        recipe: str,
        config: str,
        remote_code: bool,
        section: Verify | None,
        *,
        real: bool,
        values: Mapping[str, Any],
    ) -> Basis:
        """That of a run which starts now; `real` with real CUDA graphs."""
        facts = dict(_facts(recipe, config, remote_code, section, values, real))
        return cls(recipe, config, remote_code, dict(values), facts)

    def differences(self, now: Basis) -> tuple[str, ...]:
        """The facts that are others now, in words."""
        return tuple(
            f"{name} was {self.facts.get(name, 'absent')}, now {now.facts.get(name, 'absent')}"
            for name in dict.fromkeys((*self.facts, *now.facts))
            if self.facts.get(name) != now.facts.get(name)
        )


def _facts(
    recipe: str, config: str, remote_code: bool, section: Verify | None, values: Mapping[str, Any], real: bool
) -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_implementation()} {platform.python_version()}"
    for package in _COMPUTING:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    yield "code that Python runs at its start", _start()
    tool = digest_as_run(Path(scaffold.__file__).parent, {})
    yield "vitcg-scaffold", f"{scaffold.__version__} ({tool[:16]})"
    name = Path(recipe).name
    yield "recipe", f"{name} ({_content(recipe)})" if recipe.endswith(".py") else recipe
    if config:
        yield "configuration", f"{Path(config).name} ({_content(config, everything=remote_code)})"
        yield "remote code", "run" if remote_code else "not run"
    if section is not None:
        yield "verify section", _json({name: getattr(section, name) for name in section.by_name})
    if values:
        yield "--set", _json(values)
    for variable, value in sorted(os.environ.items()):
        if value and variable.startswith((*SEARCHED, *(SETTINGS if real else ()))):
            yield (
                variable,
                hashlib.sha256(os.fsencode(value)).hexdigest()[:16],
            )  # paths of a machine are nobody's business


def _start() -> str:
    """A hash of what Python runs at its start, and of what a user's own folder puts before the installed packages."""
    found = [file for folder in site.getsitepackages() for file in Path(folder).glob("*.pth")]
    names: list[str] = []
    if site.ENABLE_USER_SITE and (own := Path(site.getusersitepackages())).is_dir():
        names = [str(own), *sorted(file.name for file in own.iterdir())]
        found += [file for file in own.iterdir() if file.is_file()]
    for module in ("sitecustomize", "usercustomize"):
        with suppress(ImportError, ValueError):  # ValueError: it is loaded, and says nothing of its origin
            spec = find_spec(module)
            found += [Path(spec.origin)] if spec is not None and spec.origin else []
    contents = sorted((file.name, _content(str(file))) for file in found)
    return hashlib.sha256(json.dumps([names, contents]).encode()).hexdigest()[:16]


def _json(values: Mapping[str, Any]) -> str:
    """Without a backtick: `pr` quotes it as code."""
    return json.dumps(values, sort_keys=True).replace("`", r"\u0060")


def _content(name: str, *, everything: bool = True) -> str:
    path = Path(name)
    if not path.is_dir():
        try:
            return digest_of_file(path).hex()
        except OSError as error:
            return f"not readable: {error.strerror}"
    left_out = () if everything else (file for file in path.rglob("*") if file.suffix in _WEIGHTS)
    return digest_as_run(path, {file.relative_to(path).as_posix(): None for file in left_out})


@dataclass(frozen=True)
class KeptProof:
    """Reports, with what they depend on."""

    basis: Basis
    reports: tuple[NumericReport, ...]


def identify_proof(model: str, root: Path, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """A hash of the package's files before a port, as the lab runs them, and of those that the port of `model` changed.

    `root` is a tree; of the paths in `before` it may hold another content. An empty one is a file that was not there.
    """
    changed = sorted((path, hashlib.sha256(data or b"").hexdigest()) for path, data in _of_package(after).items())
    state = digest_as_run(root / _PACKAGE, _of_package(before))
    return hashlib.sha256(json.dumps([model, state, changed]).encode()).hexdigest()


def find_other_changes(root: Path, before: Mapping[str, bytes], base: Path) -> list[str]:
    """The files of the package that are not as in the tree `base`, with those of the port as they were `before` it."""
    return [_PACKAGE + path for path in find_differences(root / _PACKAGE, base / _PACKAGE, _of_package(before))]


def _of_package(files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """By path in the package. None for an empty file, which stands for one that was not there."""
    return {path.removeprefix(_PACKAGE): data or None for path, data in files.items() if path.startswith(_PACKAGE)}


def keep_proof(identity: str, proof: KeptProof) -> None:
    """Put a result in the place of an earlier one. Raises OSError, and VCG712 where others can write the cache."""
    folder = made_folder("proofs")
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as draft:
        json.dump({"basis": asdict(proof.basis), "reports": [report.document() for report in proof.reports]}, draft)
    Path(draft.name).replace(folder / f"{identity}.json")


def find_proof(identity: str) -> KeptProof | None:
    """The last result for that port in that tree; None if there is none that can be read. Raises VCG712."""
    path = cache_folder("proofs") / f"{identity}.json"
    try:
        found = json.loads(read_regular(path))
        reports = tuple(NumericReport.from_document(document) for document in found["reports"])
        basis = Basis(**found["basis"])
        known = isinstance(basis.facts, dict) and isinstance(basis.values, dict)
        return KeptProof(basis, reports) if known else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
