"""Checks that a port brings to the tree's own encoder-graph manager, for all models at once.

* `FRAMES`: a batch that a graph cannot hold runs eagerly. A manager packs items by their tokens and bounds no frames,
  so that a batch may have more sequences than its graph was captured for, and the copy into the buffers raised.
* `EMBEDS`: precomputed embeddings are left to the runner, which calls `embed_multimodal` where a manager gives None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from scaffold.edit.operations import PutMethods, ReplaceMethod
from scaffold.plan.file_plans import FilePlan
from scaffold.protocol.profile import MANAGER
from scaffold.render import Signatures, render_template
from scaffold.syntax import find_class

if TYPE_CHECKING:
    from scaffold.edit.operations import Edit
    from scaffold.protocol import ProtocolProfile, SourceTree

#: vLLM's unit tests of its manager.
MANAGER_TESTS = "tests/v1/cudagraph/test_encoder_cudagraph.py"

#: The callers of a manager, and how they take None for an answer.
_RUNNERS = ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/mm/encoder_runner.py")
_TAKES_NONE = "cudagraph_output is not None"

_INDENT = "    "


@dataclass(frozen=True)
class Check:
    """A check that a port asks for.

    `method` of the manager has it where its code mentions `sign`, and it stands between the statements that begin with
    `between`. `tested` is a class of vLLM's unit tests. Templates are named after `name`. `says`: what the header and
    the docstring say, before and after. `why` is for people, and `thread` an open pull request of vLLM with this aim.
    """

    name: str
    method: str
    sign: str
    between: tuple[str, str]
    tested: str
    reason: str
    why: str
    thread: str
    says: tuple[tuple[str, str], ...] = ()

    @property
    def test(self) -> str:
        """The unit test, without indentation."""
        return render_template(f"manager/test_{self.name}.py.jinja")


FRAMES = Check(
    "frames",
    "_run_budget_graph",
    "encoder_eager_forward",
    (
        "replay = self.model.prepare_encoder_cudagraph_replay_buffers(",
        "for key, buf in graph_meta.input_buffers.items():",
    ),
    "TestEncoderCudaGraphVideoReplay",
    "let batches that a graph cannot hold run eagerly",
    "The manager packs by tokens alone. It raised for a batch of more frames than its graph has, and now runs it "
    "eagerly, of whatever model",
    "vllm-project/vllm#43403",
)
EMBEDS = Check(
    "embeds",
    "execute",
    "_embeds",
    ("'Execute encoder using CUDA graph", "if self.use_dp:"),
    "TestFindBudgetGraph",
    "leave precomputed embeddings to the runner",
    "Precomputed embeddings have no pixels, for which the methods of each port ask. The manager leaves them to the "
    "runner, which calls `embed_multimodal`, as for a modality without graphs",
    "vllm-project/vllm#58122",
    (
        ("-> list[torch.Tensor]:", "-> list[torch.Tensor] | None:"),
        ("outputs (one per item).", "outputs (one per item), or None if they are precomputed."),
    ),
)

#: Lines of a file, by the number of the one in whose place they come.
Lines: TypeAlias = Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A check that a manager lacks: the lines of its file, and those of its unit tests, if the tree has them."""

    path: str
    method: ast.FunctionDef
    lines: Lines
    tests: Lines


def find_missing(tree: SourceTree, profile: ProtocolProfile, check: Check) -> Missing | bool:
    """A check that the manager of a tree lacks; True where it has it, False where its code has another form."""
    path = f"{profile.manager_module.replace('.', '/')}.py"
    owner = find_class(tree.parse(path), MANAGER)
    assert owner is not None, "a profile names the file that defines it"
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == check.method]
    if len(methods) != 1:
        return False
    [method] = methods
    if check.sign in ast.unparse(method):
        return True
    first, second = check.between
    code = [(node.end_lineno or 0, ast.unparse(node)) for node in method.body]
    places = [end for (end, a), (_, b) in pairwise(code) if a.startswith(first) and b.startswith(second)]
    text = tree.read(path).splitlines()
    above = range(method.lineno, method.body[1].lineno)
    said = {n: text[n - 1].replace(*words) for n in above for words in check.says if words[0] in text[n - 1]}
    if len(places) != 1 or len(said) != len(check.says) or (check is EMBEDS and not _takes_none(tree)):
        return False
    template = render_template(f"manager/{check.name}.py.jinja", signature=Signatures(profile))
    line = next(number for number in range(places[0] + 1, len(text)) if text[number - 1].strip())
    indent = " " * method.col_offset
    added = tuple(f"{indent}{one}".rstrip() for one in template.splitlines())
    lines = {number: (one,) for number, one in said.items()} | {line: (*added, text[line - 1])}
    return Missing(path, method, lines, _test_lines(tree, check))


def _test_lines(tree: SourceTree, check: Check) -> Lines:
    """The unit test at the end of its class, and what a result that may be None asks of another test."""
    owner = find_class(tree.parse(MANAGER_TESTS), check.tested) if tree.exists(MANAGER_TESTS) else None
    if owner is None:
        return {}
    text = tree.read(MANAGER_TESTS).splitlines()
    end = owner.end_lineno or 0
    found = {end: (text[end - 1], "", *(f"{_INDENT}{line}".rstrip() for line in check.test.splitlines()))}
    unchecked = [number for number, line in enumerate(text, 1) if line == f"{2 * _INDENT}assert len(img_result) == 2"]
    if check is EMBEDS:
        checked = tuple(f"{2 * _INDENT}assert {name} is not None" for name in ("img_result", "vid_result"))
        found |= {number: (*checked, text[number - 1]) for number in unchecked}
    return found


def checks_in(files: Iterable[FilePlan]) -> list[Check]:
    """The checks that these edits bring."""
    edits = (edit for file in files for edit in file.edits if isinstance(edit, ReplaceMethod))
    names = {edit.name for edit in edits if edit.class_name == MANAGER}
    return [check for check in (FRAMES, EMBEDS) if check.method in names]


def _takes_none(tree: SourceTree) -> bool:
    return all(_TAKES_NONE in tree.read(path) for path in _RUNNERS if tree.exists(path))


def plan_manager(
    tree: SourceTree, profile: ProtocolProfile, wanted: Sequence[Check]
) -> tuple[list[FilePlan], frozenset[Check]]:
    """The edits after which the manager has the wanted checks, and those of them that it has then.

    It has none that its code has no place for, or where it belongs to another package than the run.
    """
    found = {check: find_missing(tree, profile, check) for check in wanted if tree.package is None}
    missing = {check: one for check, one in found.items() if isinstance(one, Missing)}
    files = []
    for path in {one.path for one in missing.values()}:
        text = tree.read(path)
        edits = [
            ReplaceMethod(MANAGER, check.method, _source(text, one.method, one.lines)) for check, one in missing.items()
        ]
        files.append(FilePlan(path, tuple(edits), ", and ".join(check.reason for check in missing)))
    tests: list[Edit] = []
    for check, one in missing.items():
        tests += [PutMethods(check.tested, check.test)] if one.tests else []
        tests += _checked(tree, one.tests)
    files += [FilePlan(MANAGER_TESTS, tuple(tests), "test what its manager does now")] if tests else []
    return files, frozenset(check for check, one in found.items() if one)


def _checked(tree: SourceTree, lines: Lines) -> Iterator[ReplaceMethod]:
    """The tests of others that these lines change, as they become."""
    for owner in tree.parse(MANAGER_TESTS).body if lines else ():
        if not isinstance(owner, ast.ClassDef):
            continue
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            own = {number: new for number, new in lines.items() if method.lineno <= number <= (method.end_lineno or 0)}
            own = {number: new for number, new in own.items() if number != owner.end_lineno}
            if own:
                yield ReplaceMethod(owner.name, method.name, _source(tree.read(MANAGER_TESTS), method, own))


def _source(text: str, method: ast.FunctionDef, new: Lines) -> str:
    """A method as it becomes, without indentation."""
    old = text.splitlines()
    numbers = range(method.lineno, (method.end_lineno or 0) + 1)
    lines = (one for number in numbers for one in new.get(number, (old[number - 1],)))
    return "\n".join(line.removeprefix(" " * method.col_offset) for line in lines)
