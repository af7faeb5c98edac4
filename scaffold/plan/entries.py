"""The additions of a port outside the model file: the generation test's entry, the docs row, the example's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.edit.operations import AddDictEntry, AddImport, AddListEntry, AddTableRow, Edit, PutFunction
from scaffold.plan.comparison import FIELD, can_compare, comparison_edits, plan_comparison, plan_pooling
from scaffold.plan.file_plans import Fact, FilePlan
from scaffold.plan.platforms import IS_ROCM, PLATFORM, PLATFORMS, class_on_rocm
from scaffold.protocol import find_docs_table, find_eager, find_example_list, find_test_registry
from scaffold.protocol.listed import listed_models
from scaffold.render import Code, pyrepr, render_template

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.descriptor.sections import PoolingTest, Template, TestEntry
    from scaffold.protocol import ListAnchor, RegistryAnchor, SourceTree, TableAnchor

#: Columns of the docs table whose mark does not depend on the model's modalities.
_MULTI_PATH_COLUMNS = ("Dual-Path Graph", "Multi-Path Graph")
_MODALITY_COLUMNS = {"CG for Image": "image", "CG for Video": "video"}


@dataclass(frozen=True)
class Entries:
    """The files of the port besides the model's, what was read of them, and what the user should know.

    `shared` are the edits of these files that no entry of the port is among.
    """

    files: tuple[FilePlan, ...]
    facts: tuple[Fact, ...]
    notes: tuple[Diagnostic, ...]
    shared: tuple[FilePlan, ...] = ()


def plan_entries(port: AnyPort, tree: SourceTree, heirs: Collection[str] = ()) -> Entries:
    """The generation test, the docs rows and the example, where the tree has the place and the descriptor the entry.

    `heirs` are architectures that inherit the port: each has a row where vLLM's documentation names its models.
    """
    files: list[FilePlan] = []
    facts: list[Fact] = []
    notes: list[Diagnostic] = []
    registry, table, examples = find_test_registry(tree), find_docs_table(tree), find_example_list(tree)
    compared = registry is not None and can_compare(registry, tree)
    on_rocm = class_on_rocm(port, tree)
    if on_rocm is not None:
        notes.append(_not_on_rocm(port, on_rocm))
    if registry is not None and port.tests:
        files.append(plan_tests(port, registry, compared=compared, cuda_only=on_rocm is not None))
    if port.pooling is not None and compared:
        files.append(plan_pooling(port.pooling.key, pooling_fields(port.pooling), tree))
    shared: list[FilePlan] = []
    if registry is not None and compared and any(file.edits or file.source for file in files):
        shared = plan_comparison(registry, tree, with_runner=bool(port.tests))
        files += [file for file in shared if file.path != registry.path]
    if registry is not None and port.tests:
        facts.append(Fact("generation test", registry.variable, f"{registry.path}:{registry.line}"))
    others = [name for name in heirs if name != port.architecture]
    named = [(name, row.families) for name in others for row in list(listed_models(tree, [name]))[:1]]
    if table is not None and port.docs_models:
        files.append(plan_docs(port, table, named, cuda_only=on_rocm is not None))
        facts.append(Fact("docs table", f"{len(table.columns)} columns", f"{table.path}:{table.line}"))
    if examples is not None and port.examples:
        eager = _eager_examples(port, tree, examples)
        files.append(plan_examples(port, examples, eager))
        facts.append(Fact("example list", examples.variable, f"{examples.path}:{examples.line}"))
        notes += [*_unknown_examples(port, tree, examples), *eager.values()]
    notes.extend(_missing(port, registry, table, examples))
    return Entries(tuple(files), tuple(facts), tuple(notes), tuple(shared))


def _not_on_rocm(port: AnyPort, on_rocm: str) -> Diagnostic:
    return Diagnostic(
        "VCG469",
        f"the port is of the class for CUDA: on ROCm vLLM loads {on_rocm}, which has no encoder graphs",
        port.span("model.module"),
        "a test entry that the port adds is skipped there, and a docs row that it adds says so. For graphs there, port "
        f"that class first, from a copy of the descriptor with `module: {on_rocm.rpartition('.')[0]}`",
        Severity.INFO,
    )


def _missing(
    port: AnyPort, registry: RegistryAnchor | None, table: TableAnchor | None, examples: ListAnchor | None
) -> Iterator[Diagnostic]:
    """The places of the tree that the descriptor has nothing for, with the way to add it."""
    if not port.tested_modalities:
        return
    lacks = []
    if registry is not None and not port.tests and port.pooling is None:
        prompts = "".join(f", {modality}_prompt: TEXT" for modality in port.tested_modalities)
        way = (
            f"add `test: {{key: {port.name}, model: ORGANISATION/CHECKPOINT{prompts}}}` under `integration`. A TEXT is "
            "a prompt of that checkpoint with what stands there for an item; `vitcg-scaffold init` drafts it where the "
            "model's `get_placeholder_str` or an offline example says that. A model that only pools has the section "
            "`pooling` instead"
        )
        lacks.append(("test entry: nothing in vLLM's CI will run it", way))
    if table is not None and not port.docs_models:
        lacks.append(("row in the docs table", "list the families of models under `integration.docs.models`"))
    if examples is not None and not port.examples:
        way = f"name a key of `model_example_map` in {examples.path} as `integration.example`"
        lacks.append(("name in the example's list", f"{way}; without a fitting one, write an example there"))
    for what, way in lacks:
        yield Diagnostic("VCG524", f"the port has no {what}", port.span("integration"), way, Severity.WARNING)


def plan_tests(port: AnyPort, registry: RegistryAnchor, *, compared: bool = False, cuda_only: bool = False) -> FilePlan:
    """The entries that the generation test lacks; where outputs can be `compared`, with the test that does it.

    Those that are for CUDA only are skipped on ROCm.
    """
    modalities = list(port.tested_modalities)
    edits = [edit for test in port.tests for edit in _test_edits(test, modalities, registry, compared, cuda_only)]
    edits += comparison_edits(registry) if compared and edits else []
    return FilePlan(registry.path, tuple(edits), f"run {port.class_name} in the generation test")


def _test_edits(
    test: TestEntry, modalities: list[str], registry: RegistryAnchor, compared: bool, cuda_only: bool
) -> Iterator[Edit]:
    if any(entry.key == test.key or entry.model == test.model for entry in registry.entries):
        return  # It is tested already, under this or another key.
    if test.template is not None and test.template.name not in registry.functions:
        text = ast.unparse(ast.parse(_fstring(test.template.text), mode="eval"))
        same = next((name for name, code in registry.functions.items() if code == text), None)
        if same is None:
            yield PutFunction(chat_template(test.template), before=registry.variable)
        else:
            test = test.replace(template=test.template.replace(name=same))
    entry = test_entry(test, modalities, registry, compared=compared, cuda_only=cuda_only)
    shrinks = "partial(dummy_hf_overrides" in entry
    needed = [("functools", "partial"), ("...utils", "dummy_hf_overrides")] if shrinks else []
    needed += [(PLATFORMS, PLATFORM)] if IS_ROCM in entry else []
    for module, name in needed:
        if name not in registry.imports:
            yield AddImport(module, name)
    yield AddDictEntry(registry.variable, test.key, entry)


def plan_docs(
    port: AnyPort, table: TableAnchor, heirs: Sequence[tuple[str, Sequence[str]]] = (), *, cuda_only: bool = False
) -> FilePlan:
    """The rows that the table lacks: the port's, and those of its `heirs` with their models."""
    named = [(port.architecture, port.docs_models), *heirs]
    known = {row.architecture for row in table.rows}
    only = " (CUDA only)" if cuda_only else ""
    rows = [_row(port, table, name, models, only) for name, models in named if name not in known]
    edits = tuple(AddTableRow(table.columns, cells[0], cells) for cells in rows)
    return FilePlan(table.path, edits, "list the model as supported")


def plan_examples(port: AnyPort, examples: ListAnchor, eager: Container[str] = ()) -> FilePlan:
    known = [name for name in port.examples if name in examples.example_keys and name not in eager]
    return FilePlan(
        examples.path,
        tuple(AddListEntry(examples.variable, name) for name in known),
        "allow encoder CUDA graphs in the example",
    )


def _eager_examples(port: AnyPort, tree: SourceTree, examples: ListAnchor) -> dict[str, Diagnostic]:
    """Examples that the list gets no entry for, since they have no graphs at all; it keeps those that it has."""
    listed = {entry.value for entry in examples.entries}
    lines = {name: find_eager(tree, examples, name) for name in port.examples if name not in listed}
    return {
        name: Diagnostic(
            "VCG427",
            f"the example {name!r} sets `enforce_eager=True`, so it captures no graph; the list gets no entry for it",
            tree.span(examples.path, line),
            "leave it so, or delete that line and run this again",
            Severity.INFO,
        )
        for name, line in lines.items()
        if line is not None
    }


def _unknown_examples(port: AnyPort, tree: SourceTree, examples: ListAnchor) -> Iterator[Diagnostic]:
    for name in port.examples:
        if name not in examples.example_keys:
            yield Diagnostic(
                "VCG427",
                f"{tree.display(examples.path)} has no example named {name!r}; its list gets no entry for it",
                port.span("integration.example"),
                "name a key of `model_example_map`, or leave the line: another release may have the example",
                Severity.WARNING,
            )


def chat_template(template: Template) -> str:
    """The module function that wraps a prompt in the model's chat template."""
    return render_template("test/template.py.jinja", name=template.name, text=Code(_fstring(template.text)))


def test_entry(
    test: TestEntry, modalities: list[str], anchor: RegistryAnchor, *, compared: bool, cuda_only: bool
) -> str:
    """The entry's value, with those arguments only that this release's entry class has, or gets for a comparison."""
    known = {field.name for field in anchor.entry_fields} | ({FIELD} if compared else set())
    fields: dict[str, Any] = {
        "model": test.model,
        # Image and video is the default of every release.
        "modalities": None if modalities == ["image", "video"] else modalities,
        "num_video_frames": test.num_video_frames,
        "image_prompt": _prompt(test, test.image_prompt),
        "video_prompt": _prompt(test, test.video_prompt) if "video" in modalities else None,
        "needs_video_metadata": test.needs_video_metadata,
        "dtype": test.dtype,
        "max_model_len": test.max_model_len,
        "max_tokens": test.max_tokens,
        "max_num_seqs": test.max_num_seqs,
        "vllm_runner_kwargs": _runner_arguments(test, known),
        "compilation_config_overrides": _overrides(test, compared) or None,
        "marks": _marks(test, known, cuda_only),
        "skip": True if test.skip is True else None,
        FIELD: True if compared else None,
    }
    comments = _comments(test, modalities, compared)
    given = [
        (name, value if isinstance(value, Code) else pyrepr(value), comments.get(name, ()))
        for name, value in fields.items()
        if value is not None and name in known
    ]
    return render_template("test/entry.py.jinja", entry_class=anchor.entry_class, fields=given)


def pooling_fields(test: PoolingTest) -> list[tuple[str, Code, tuple[Code, ...]]]:
    """The arguments of an entry of the test of pooling models, each with its comments."""
    values = {
        "model": pyrepr(test.model),
        "pooling_task": pyrepr(test.task),
        "image_prompt": None if test.image_prompt is None else wrapped(test.image_prompt, 60),
        "max_model_len": None if test.max_model_len is None else pyrepr(test.max_model_len),
        "vllm_runner_kwargs": _runner_code(test.runner_kwargs, test.dummy_arch, {}),
    }
    random = (Code("Random weights, so that the test skips the download."),)
    comments = {"vllm_runner_kwargs": random} if test.dummy_arch is not None else {}
    return [(name, value, comments.get(name, ())) for name, value in values.items() if value is not None]


_BUDGETS = "encoder_cudagraph_token_budgets"
#: The largest budget of an entry that is doubled for two items. The encoder's activations grow with it.
_DOUBLED = 4096


def _doubled(test: TestEntry, compared: bool) -> list[int]:
    """The one budget of an entry, which covers an item, for two items in a replay; empty for other entries."""
    budgets = test.compilation_overrides.get(_BUDGETS)
    is_one = compared and isinstance(budgets, list | tuple) and len(budgets) == 1 and budgets[0] <= _DOUBLED
    return [2 * budgets[0]] if is_one and budgets else []


def _overrides(test: TestEntry, compared: bool) -> dict[str, Any]:
    """The entry's settings of the compilation. A comparison wants more than one item in a replay."""
    doubled = _doubled(test, compared)
    return {
        **test.compilation_overrides,
        **({_BUDGETS: doubled} if doubled else {}),
        **({"encoder_cudagraph_max_vision_items_per_batch": 2} if compared else {}),
    }


def _comments(test: TestEntry, modalities: list[str], compared: bool) -> dict[str, tuple[Code, ...]]:
    """Comments on the choices that vLLM's maintainers explain, too: one budget instead of many, random weights."""
    comments: dict[str, tuple[Code, ...]] = {}
    inputs = "images" if "image" in modalities else "videos"
    budgets = test.compilation_overrides.get(_BUDGETS)
    why: tuple[Code, ...] = ()
    if _doubled(test, compared):
        why = (
            Code(f"One budget for two of the test {inputs} in a replay: each budget captures a"),
            Code("graph of the whole encoder."),
        )
    else:
        if budgets is not None and len(budgets) == 1:
            why = (
                Code(f"One budget that covers the test {inputs}: each budget captures a graph of"),
                Code("the whole encoder."),
            )
        if compared:
            why = (*why, Code(f"A batch may have two of the test {inputs}."))
    if why:
        comments["compilation_config_overrides"] = why
    if test.dummy_arch is not None:
        comments["vllm_runner_kwargs"] = (
            Code("Random weights, so that the test skips the download. Its text is random,"),
            Code("too, so `check_outputs` asks for the encoder's outputs.")
            if compared
            else Code("too: the test only shows that nothing raises."),
        )
    return comments


def docs_row(port: AnyPort, table: TableAnchor) -> tuple[str, ...]:
    """Cells of the port's row, in the table's own columns and marks."""
    return _row(port, table, port.architecture, port.docs_models)


def _row(
    port: AnyPort, table: TableAnchor, architecture: str, models: Sequence[str], only: str = ""
) -> tuple[str, ...]:
    cells: list[str] = []
    for column in table.columns:
        if column == "Architecture":
            cells.append(f"`{architecture}`")
        elif column == "Models":
            cells.append(", ".join(f"`{name}`" for name in models) + only)
        elif column in _MODALITY_COLUMNS:
            cells.append(table.yes if _MODALITY_COLUMNS[column] in port.tested_modalities else table.no)
        elif column in _MULTI_PATH_COLUMNS:
            cells.append(table.yes if port.has_paths else table.no)
        else:
            # A column that a future release may add: a person must look at it.
            cells.append("")
    return tuple(cells)


def _prompt(test: TestEntry, prompt: str | None) -> Code | None:
    if prompt is None:
        return None
    # Without a template around it the literal shares its line with the field's name.
    literal = wrapped(prompt, 60 if test.template is None else 66)
    return literal if test.template is None else Code(f"{test.template.name}({literal})")


def wrapped(text: str, width: int = 66) -> Code:
    """A string literal; a long one in several parts, broken after a space or a special token (`<|image_pad|>`).

    No formatter breaks a string, and lines of more than 88 columns are against vLLM's rules.
    """
    return Code(" ".join(pyrepr(part) for part in _parts(text, width)))


def _parts(text: str, width: int) -> list[str]:
    parts, part = [], ""
    for piece in re.split(r"(?<=[ >])", text):
        if part and piece and len(part) + len(piece) > width:
            parts.append(part)
            part = ""
        part += piece
    return [*parts, part]


def _marks(test: TestEntry, known: Set[str], cuda_only: bool) -> Code | None:
    """The field `skip` takes no reason, and releases before 0.24 do not have it: a mark does for both."""
    marks = ["pytest.mark.core_model"] if test.core_model else []
    if isinstance(test.skip, str):
        marks.append(f"pytest.mark.skip(reason={pyrepr(test.skip)})")
    elif test.skip and "skip" not in known:
        marks.append("pytest.mark.skip")
    if cuda_only:
        marks.append(f'pytest.mark.skipif({IS_ROCM}, reason="The class for ROCm has no encoder CUDA graphs")')
    return Code(f"[{', '.join(marks)}]") if marks else None


def _runner_arguments(test: TestEntry, known: Set[str]) -> Code | None:
    arguments: dict[str, Any] = dict(test.runner_kwargs)
    budgets = test.compilation_overrides.get("encoder_cudagraph_token_budgets")
    if budgets and "compilation_config_overrides" not in known:
        # Before 0.22 an entry has no settings of the compilation; no budget is above the tokens of a step.
        arguments.setdefault("max_num_batched_tokens", max(budgets))
    return _runner_code(arguments, test.dummy_arch, test.dummy_overrides)


def _runner_code(arguments: Mapping[str, Any], dummy: str | None, dummy_overrides: Mapping[str, Any]) -> Code | None:
    """The arguments of a test's runner, with those of a `dummy` architecture."""
    parts = [f"{pyrepr(name)}: {pyrepr(value)}" for name, value in arguments.items()]
    if dummy is not None:
        parts.append('"load_format": "dummy"')
        overrides = "".join(f", {name}={pyrepr(value)}" for name, value in dummy_overrides.items())
        parts.append(f'"hf_overrides": partial(dummy_hf_overrides, model_arch={pyrepr(dummy)}{overrides})')
    return Code("{" + ", ".join(parts) + "}") if parts else None


def _fstring(text: str) -> str:
    """`text` with one `{content}` slot as an f-string literal, in several parts if it is long."""
    literals = []
    for part in _parts(text, 66):
        literal = pyrepr(part)
        braced = "f" + literal.replace("{", "{{").replace("}", "}}").replace("{{content}}", "{content}")
        literals.append(braced if "{content}" in part else literal)
    return literals[0] if len(literals) == 1 else f"({' '.join(literals)})"
