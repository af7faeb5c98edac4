"""The numerical proof of one adapter: the lab runs the subclass in the place of the release's own class."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree
    from scaffold.verify.numeric import NumericReport, Tail

#: Where the adapter lies in the lab's tree of links: a module beside the release's models, which nothing else has.
_MODULE = "vllm.model_executor.models.vitcg_adapter"


def prove_adapter(
    descriptor: str,
    adapter: Path,
    tree: SourceTree | str,
    *,
    tail: Tail = "fa3",
) -> NumericReport:
    """Run the file `adapter` in the CPU lab of `tree` (a release such as `0.30.0` is fetched).

    The release's own files stay as they are: what is compared is `embed_multimodal` of its class with what its manager
    makes of the adapter. Raises `DiagnosticError` as `check_numerics` and `resolve_target`.
    """
    from scaffold.protocol import resolve_target
    from scaffold.verify.numeric import check_numerics
    from scaffold.workflow import load_port, numeric_requests

    port = load_port(descriptor)
    source = resolve_target(tree).tree if isinstance(tree, str) else tree
    (request,) = numeric_requests(port, source, tails=(tail,), as_is=True)
    content, folder = adapter.read_bytes(), Path(*_MODULE.split(".")[:-1])
    overlay = {f"{_MODULE.replace('.', '/')}.py": content}
    for node in ast.parse(content).body:
        if isinstance(node, ast.ImportFrom) and node.level:  # a mixin, which lies beside the adapter
            overlay[str(folder / f"{node.module}.py")] = adapter.with_name(f"{node.module}.py").read_bytes()
    request = replace(
        request,
        overlay=overlay,
        host=f"{_MODULE}:{port.architecture}",
        # An adapter has the methods of a port, whose proof has these calls.
        options=replace(request.options, edges=False),
    )
    return check_numerics(request)
