"""The vLLM that is measured: the installed one, with the port of a descriptor where it has none."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree


def port_files(port: AnyPort, tree: SourceTree, replace: bool) -> Mapping[str, bytes]:
    """Files of the release's package with the port; none where the class has an implementation.

    With `replace` the port takes the place of that. Raises `DiagnosticError` where the tree takes no port.
    """
    from scaffold.plan import Present
    from scaffold.workflow import prepare_port

    try:
        prepared = prepare_port(port, tree, replace=replace)
    except DiagnosticError as error:
        if all(one.code == "VCG520" for one in error.diagnostics):
            return {}
        raise
    if prepared.plan.present is Present.CHANGED and not replace:
        return {}
    return {change.path: change.after for change in prepared.package if change.after}


@contextmanager
def installed_vllm(port: AnyPort, replace: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, `import vllm` means the installed package with the port. Nothing is written to it.

    Raises VCG490 for a release that our manager does not serve.
    """
    from scaffold.protocol import SERVED, read_protocol, resolve_target
    from scaffold.verify.numeric.cpu_imports import MissingPackages
    from scaffold.verify.numeric.overlay import build_overlay

    tree = resolve_target("installed").tree
    if read_protocol(tree).generation not in SERVED:
        raise DiagnosticError.of(
            "VCG490",
            f"our manager does not support vLLM {tree.release or 'of this protocol'}",
            help=f"measure with vLLM {SERVED[0].first} to {SERVED[-1].last}",
        )
    files = port_files(port, tree, replace)
    note(f"measures the port of {port.name}" if files else "measures the implementation of the installed vLLM")
    missing = MissingPackages()
    sys.meta_path.append(missing)
    with tempfile.TemporaryDirectory(prefix="vitcg-bench-") as scratch:
        root = Path(scratch, "tree")
        if files:
            build_overlay(tree.root, files, root)
            sys.path.insert(0, str(root))
        try:
            yield
        finally:
            sys.meta_path.remove(missing)
            if files:
                sys.path.remove(str(root))
