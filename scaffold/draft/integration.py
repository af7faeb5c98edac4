"""Drafts the test, documentation and example entries from what the tree says of the model elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from scaffold.diagnostics import DiagnosticError
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet, SourceLine
from scaffold.protocol import RegistryAnchor, find_example_list, find_test_registry
from scaffold.protocol.listed import listed_models
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import call_name, strings
from scaffold.tower.names import mentions
from scaffold.watch import Recording

_CHECKPOINTS = "tests/models/registry.py"
#: vLLM's other generation test, whose entries have prompts of their models.
_COMPARED = "tests/models/multimodal/generation/test_common.py"
#: The method of a model that gives these.
_PLACEHOLDER = "get_placeholder_str"
#: Short, so that a test entry without a template keeps to vLLM's line length.
_PROMPTS = {"image": "What is in this image?", "video": "Describe this video in one sentence."}


#: Tokens that a step of an engine has by default.
_STEP = 8192
#: Options of the test's runner that vLLM's registry of checkpoints calls otherwise.
_OPTIONS = {"tokenizer": "tokenizer_name"}
#: The formats of numbers that names of checkpoints end in.
_FORMAT = re.compile(r"-(?:(?:NV|MX)?FP\d+|BF16|INT\d|AWQ|GPTQ)\b.*", re.IGNORECASE)
#: The function that makes a pooler, and its task.
_POOLERS = {"for_embedding": "embed", "for_seq_cls": "classify", "pooler_for_token_embed": "token_embed"}
#: The text of a prompt that is nothing else.
_BARE = "{content}"


@dataclass(frozen=True, slots=True)
class _Template:
    """The `text` of a prompt with one {content}, and what stands `between` placeholder and question there.

    `name` is the function of the generation test with this text, empty where that is yet to be written. `item` is what
    vLLM's other generation test has for an image.
    """

    text: str
    between: str
    place: SourceLine
    name: str = ""
    item: str = ""


@dataclass(frozen=True, slots=True)
class _Example:
    key: str
    file: str
    function: ast.FunctionDef

    def at(self, node: ast.expr | ast.stmt) -> SourceLine:
        return SourceLine(self.file, node.lineno)


def draft_integration(sheet: Sheet, subject: Subject, modalities: tuple[str, ...], recording: Recording | None) -> None:
    """Fill in `integration` where the tree has tests and documentation of the model.

    The recording's placeholders stand for an item of each modality in a prompt. The chat template is that of the
    model's offline example, or one of the test file that another example of the model writes, too, or that of vLLM's
    other generation test; without one a prompt is placeholder and question. A model without a placeholder takes that
    of the example's prompt. One that only pools has an entry of its own test. The test has dummy weights,
    since a checkpoint may be too large for its machine, and the context that other tests of vLLM give the model, or its
    example's, if that is longer than usual. Where they give none, and every item has as many tokens, a recorded context
    below that of most tests is enough: vLLM refuses more than a checkpoint has. Their test, table and example have no
    place for sound alone.
    """
    if not _PROMPTS.keys() & set(modalities):
        return
    checkpoint = _checkpoint(subject.tree, [name for name, generates in subject.architectures.items() if generates])
    placeholders: Mapping[str, str] = recording.placeholders if recording is not None else {}
    example = _example(subject)
    shown = placeholders.get("image", placeholders.get("video"))  # the example of a model of videos alone shows one
    template = _template(example, shown) if example else None
    if shown and (template is None or template.text == _BARE):
        template = _written_elsewhere(subject, shown) or template
    if template is not None:
        placeholders = {"image": "", **placeholders}
    elif shown and (compared := _compared(subject, shown)) is not None:
        template, placeholders = compared, {**placeholders, "image": compared.item}
    whole = _whole_prompt(example) if example is not None and template is None and shown == "" else None
    if template is None and whole is None and shown == "" and not _inserts(subject):
        placeholders = {}  # nothing says where items are in a prompt
    listed = next(listed_models(subject.tree, subject.architectures), None)
    families = listed.families if listed is not None else ()
    if checkpoint is not None and all(name in placeholders for name in modalities if name in _PROMPTS):
        at = "integration.test"
        architecture, name, keywords, place = checkpoint
        wrapped = template is not None and template.text != _BARE
        sheet.put(f"{at}.key", _key(subject, families, example))
        sheet.put(f"{at}.model", name, place)
        for modality in modalities:
            if modality in _PROMPTS and whole is not None:
                sheet.put(f"{at}.{modality}_prompt", whole[0], whole[1], why="the prompt of the offline example")
            elif modality in _PROMPTS:
                text = f"{placeholders[modality]}{template.between if template else ''}{_PROMPTS[modality]}"
                why = f"what `{_PLACEHOLDER}` gives{'' if wrapped else ', without a chat template'}"
                if template is not None and template.item == placeholders[modality]:
                    why = "as in vLLM's other generation test"
                sheet.put(f"{at}.{modality}_prompt", text, None if wrapped or not template else template.place, why=why)
        if template is not None and wrapped:
            why = "the prompt of vLLM's other generation test" if template.item else "the prompt of the offline example"
            if template.name:
                why = "the test file's own, which this example writes, too"
            sheet.put(f"{at}.template.name", template.name or f"{sheet.value(f'{at}.key')}_chat_template")
            sheet.put(f"{at}.template.text", template.text, template.place, why=why)
        _put_context(
            sheet, f"{at}.max_model_len", subject.tree, keywords.get("max_model_len"), place, example, recording
        )
        sheet.put(f"{at}.dummy_arch", architecture, place, why="random weights: the checkpoint may be large")
        sheet.put(f"{at}.core_model", True, why="vLLM's CI runs entries of random weights with each change")
        _put_overrides(sheet, f"{at}.dummy_overrides", keywords, place, recording)
        _put_budget(sheet, subject.tree)
        for option in ("trust_remote_code", "revision", "tokenizer", "tokenizer_mode"):
            if isinstance(given := keywords.get(option), (str, bool)):
                sheet.put(f"{at}.runner_kwargs.{_OPTIONS.get(option, option)}", given, place)
    elif not any(subject.architectures.values()) and "image" in modalities:
        _put_pooling(sheet, subject, placeholders, recording)
    if listed is not None and families:
        sheet.put("integration.docs.models", list(families), SourceLine(listed.path, listed.line))
    elif listed is None and checkpoint is not None:
        called = _FORMAT.sub("", checkpoint[1].rpartition("/")[2])
        sheet.put("integration.docs.models", [called], checkpoint[3], why="no table of vLLM's models has a name for it")
    if example is not None:
        sheet.put("integration.example", example.key, example.at(example.function))


def _put_pooling(sheet: Sheet, subject: Subject, placeholders: Mapping[str, str], recording: Recording | None) -> None:
    """The entry of a model that only pools, where its class makes one pooler and something says where an image is.

    Its prompt is what stands for an image, or nothing: where the processor puts that in, or where a test of the
    checkpoint has an empty prompt beside its images.
    """
    made = (_poolers(cls) for _, cls in subject.program.lineage(subject.owner))
    tasks = next((tasks for tasks in made if tasks), set())  # a class may take the place of its base's
    found = _checkpoint(subject.tree, list(subject.architectures))
    if found is None or len(tasks) != 1:
        return
    architecture, name, keywords, place = found
    prompt = placeholders.get("image")
    if not prompt and not _inserts(subject) and not _tested_without(subject.tree, name):
        return
    at = "integration.pooling"
    sheet.put(f"{at}.key", _key(subject, (), None))
    sheet.put(f"{at}.model", name, place)
    sheet.put(f"{at}.task", *tasks, subject.place, why="the pooler that its class makes")
    if prompt:
        sheet.put(f"{at}.image_prompt", prompt, why=f"what `{_PLACEHOLDER}` gives")
    _put_context(sheet, f"{at}.max_model_len", subject.tree, keywords.get("max_model_len"), place, None, recording)
    sheet.put(f"{at}.dummy_arch", architecture, place, why="random weights: the checkpoint may be large")
    if isinstance(revision := keywords.get("revision"), str):
        sheet.put(f"{at}.runner_kwargs.revision", revision, place)


def _poolers(cls: ast.ClassDef) -> set[str]:
    """The tasks of the poolers that a class makes."""
    called = {call_name(node) for node in ast.walk(cls) if isinstance(node, ast.Call)}
    return {task for name, task in _POOLERS.items() if name in called}


def _tested_without(tree: SourceTree, checkpoint: str) -> bool:
    """Whether a pooling test of a checkpoint gives images beside empty prompts."""
    return any(
        "" in strings(tree.parse(file))
        and any(getattr(node, "arg", None) == "images" for node in ast.walk(tree.parse(file)))
        for file in tree.containing("tests/models/multimodal/pooling", ".py", [checkpoint])
    )


def file_name(module: str) -> str:
    """The name of a model's module, or of its package: those of `vllm/models` call all their modules alike."""
    _, package, inside = module.rpartition("vllm/models/")
    return inside.partition("/")[0].removesuffix(".py") if package else inside.rpartition("/")[2].removesuffix(".py")


def _key(subject: Subject, families: Sequence[str], example: _Example | None) -> str:
    """The name of the model's file, up to the end of the family's name: `qwen3_omni` of `qwen3_omni_moe_thinker`.

    Other entries are called so, too: `gemma4` of `gemma4_mm`. The key of one that is there stays that one's, and the
    whole name is right where the example has it (`paddleocr_vl`: Paddle-OCR).
    """
    name = file_name(subject.file)
    if example is not None and example.key == name:
        return name
    registry = _test_registry(subject.tree)
    known = {entry.key for entry in registry.entries} if registry is not None else set()
    called = {re.sub(r"[^a-z0-9]", "", family.lower()) for family in families}
    parts = name.split("_")
    starts = (parts[:count] for count in range(1, len(parts)))
    keys = ("_".join(start) for start in starts if "".join(start).lower() in called)
    return next((key for key in keys if key not in known), name)


def _put_overrides(
    sheet: Sheet, at: str, keywords: Mapping[str, object], place: SourceLine, run: Recording | None
) -> None:
    """The values that vLLM's other tests override in the configuration of the small model.

    A tower of one layer, which they make of it, has no layer left where the model takes the features of an earlier one.
    """
    given = keywords.get("hf_overrides")
    overrides = dict(given) if isinstance(given, dict) else {}
    layer = run.numbers.get("self.config.vision_feature_layer") if run is not None else None
    if isinstance(layer, int) and layer < -1:
        sheet.put(f"{at}.exist_overrides", {**overrides, "vision_feature_layer": -1}, why="the tower has one layer")
    elif overrides:
        sheet.put(f"{at}.exist_overrides", overrides, place)
    # Without the overrides beside it, the number of layers may be that of a large model.
    if keywords.get("use_original_num_layers") is True and (overrides or "hf_overrides" not in keywords):
        sheet.put(f"{at}.use_original_num_layers", True, place)


def _put_budget(sheet: Sheet, tree: SourceTree) -> None:
    """One graph: with the default budgets the test captures one for each power of two.

    The usual context holds each image and video of the test in most models. An example asks for a longer one where some
    image needs it, and leaves room for more: half of it is enough. Where all images have as many tokens, one takes more
    than that half, and the default is a single graph, too.
    """
    usual = _usual_context(tree)[0] or 0
    context = int(sheet.value("integration.test.max_model_len") or usual)
    longer = context > usual > 0
    if context and not (longer and sheet.has("explicit.single")):
        key = "integration.test.compilation_overrides.encoder_cudagraph_token_budgets"
        budget = max(usual, 1 << (context // 2).bit_length() - 1) if longer else context
        # An image of several units may have more rows in a graph than tokens in the context. Here 22 of 729 rows fit.
        several = all(map(sheet.has, ("explicit.tokens", "explicit.after"))) and not sheet.has("explicit.single")
        budget = 2 * _STEP if several else min(budget, _STEP)
        sheet.put(key, [str(budget)], why="one graph, for the tokens of any test image")


def _test_registry(tree: SourceTree) -> RegistryAnchor | None:
    """The entries of the generation test; None where they cannot be read."""
    with suppress(DiagnosticError):
        return find_test_registry(tree)
    return None


def _usual_context(tree: SourceTree) -> tuple[int | None, SourceLine | None]:
    """The context of most entries of the generation test, and the line of these; None where that cannot be read."""
    registry = _test_registry(tree)
    if registry is None:
        return None, None
    default = next((one.default or "" for one in registry.entry_fields if one.name == "max_model_len"), "")
    return int(default) if default.isdecimal() else None, SourceLine(registry.path, registry.line)


def _put_context(
    sheet: Sheet,
    at: str,
    tree: SourceTree,
    given: object,
    place: SourceLine,
    example: _Example | None,
    run: Recording | None,
) -> None:
    """A context, where that of most entries of the generation test is none for the model.

    That is the `given` one of vLLM's other tests, that of the example, or the positions of the language model.
    """
    usual, there = _usual_context(tree)
    if isinstance(given, int):
        sheet.put(at, given, place)
    elif usual is not None:
        shown = _shown_context(example) if example is not None else None
        numbers = run.numbers if run is not None and sheet.has("explicit.single") else {}
        held = [numbers.get(f"self.config.{name}max_position_embeddings") for name in ("text_config.", "")]
        positions = next((value for value in held if isinstance(value, int)), usual)
        others = f"not {usual} as in other entries"
        if shown is not None and shown[0] > usual:
            sheet.put(at, *shown, why=f"{others}: that of the example")
        elif positions < usual:
            sheet.put(at, positions, there, why=f"{others}: the recorded language model has {positions} positions")


def _shown_context(example: _Example) -> tuple[int, SourceLine] | None:
    """The context that the model's offline example asks for: its prompts and images are those of the test."""
    for node in ast.walk(example.function):
        if isinstance(node, ast.keyword) and node.arg == "max_model_len" and isinstance(node.value, ast.Constant):
            return (node.value.value, example.at(node.value)) if isinstance(node.value.value, int) else None
    return None


def _entries(tree: SourceTree, file: str) -> Iterator[tuple[ast.Constant, ast.expr]]:
    """The keys and values of all mappings that a file writes out; none of a file that the tree does not have."""
    for node in ast.walk(tree.parse(file)) if tree.exists(file) else ():
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                yield key, value


def _checkpoint(tree: SourceTree, names: Sequence[str]) -> tuple[str, str, dict[str, object], SourceLine] | None:
    """The first architecture with a checkpoint that vLLM's own tests load, and the file's last entry for it.

    Another architecture of the same class may be a far larger model.
    """
    found: dict[object, tuple[str, str, dict[str, object], SourceLine]] = {}
    for key, value in _entries(tree, _CHECKPOINTS):
        name = value.args[0] if key.value in names and isinstance(value, ast.Call) and value.args else None
        if not (isinstance(value, ast.Call) and isinstance(name, ast.Constant) and name.value):
            continue
        given: dict[str, object] = {}
        for keyword in value.keywords:
            # A value that is no literal says at least that something is given.
            given[keyword.arg or ""] = None
            with suppress(ValueError):
                given[keyword.arg or ""] = _literal(keyword.value)
        known = found.get(key.value)
        # A test of a checkpoint that nobody can fetch would fail.
        if given.get("is_available_online") is not False and (known is None or key.lineno > known[3].line):
            found[key.value] = (str(key.value), str(name.value), given, SourceLine(_CHECKPOINTS, key.lineno))
    return next((found[name] for name in names if name in found), None)


def _literal(node: ast.expr) -> object:
    """The value of literals, and of lists that are added or repeated. Raises ValueError for anything else."""
    match node:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {ast.literal_eval(key) if key else None: _literal(value) for key, value in pairs}
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _literal(left), _literal(right)
            if isinstance(one, list) and isinstance(other, list):
                return [*one, *other]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _literal(left), _literal(right)
            if isinstance(one, list) and isinstance(other, int):
                return one * other
    return ast.literal_eval(node)


def _example(subject: Subject) -> _Example | None:
    """The offline example of a model: the one that loads a checkpoint of it, or that is called after its module."""
    tree, anchor = subject.tree, None
    with suppress(DiagnosticError):
        anchor = find_example_list(tree)
    if anchor is None:
        return None
    functions = {node.name: node for node in tree.parse(anchor.path).body if isinstance(node, ast.FunctionDef)}
    examples = [
        _Example(str(key.value), anchor.path, functions[value.id])
        for key, value in _entries(tree, anchor.path)
        if isinstance(value, ast.Name) and value.id in functions and key.value in anchor.example_keys
    ]
    names, known = subject.architectures, _known_checkpoints(subject)
    stem = file_name(subject.file)
    named = [example for example in examples if example.key.replace("-", "_") in (stem, f"{stem}_chat")]
    loading = [example for example in examples if known & strings(example.function)]
    if len(loading) > 1:
        loading = [example for example in loading if example in named]
    if not loading and any(names.values()):
        loading = named
    return loading[0] if len(loading) == 1 else None


def _known_checkpoints(subject: Subject) -> set[str]:
    """Checkpoints of the architectures in the tests' registry and in the documentation's table."""
    names = subject.architectures
    known = {
        name for key, value in _entries(subject.tree, _CHECKPOINTS) if key.value in names for name in strings(value)
    }
    known |= {name for row in listed_models(subject.tree, names) for name in re.findall(r"`([^`]+/[^`]+)`", row.text)}
    return {name for name in known if name.count("/") == 1}


def _written_elsewhere(subject: Subject, shown: str) -> _Template | None:
    """The template of the generation test that an example of this model alone writes around its placeholder.

    The example's own text has more, such as a system prompt with a value of its own, so it is no template by itself.
    """
    tree, known, registry = subject.tree, _known_checkpoints(subject), _test_registry(subject.tree)
    others = {
        name for _, value in _entries(tree, _CHECKPOINTS) for name in strings(value) if name.count("/") == 1
    } - known
    for file in tree.containing("examples", ".py", sorted(known)) if registry is not None else ():
        module = tree.parse(file)
        if others & strings(module) or not known & strings(module):
            continue
        for node in ast.walk(module):
            if not isinstance(node, ast.JoinedStr) or shown not in (text := _text(node, {})):
                continue
            for name, code in registry.functions.items() if registry is not None else ():
                head, content, tail = _text(ast.parse(code or "0", mode="eval").body, {"content": _BARE}).partition(
                    _BARE
                )
                _, begun, rest = text.partition(head + shown)
                if content and head.strip() and tail.strip() and begun and tail in rest:
                    return _Template(f"{head}{_BARE}{tail}", "", SourceLine(file, node.lineno), name)
    return None


def _compared(subject: Subject, shown: str) -> _Template | None:
    """The prompt of an image in vLLM's other generation test of one of this model's checkpoints."""
    known = _known_checkpoints(subject)
    for _, value in _entries(subject.tree, _COMPARED):
        given = {keyword.arg: keyword.value for keyword in getattr(value, "keywords", ())}
        if "models" not in given or not known & strings(given["models"]):
            continue
        match given.get("prompt_formatter"), given.get("img_idx_to_prompt"):
            case [formatter, ast.Lambda(body=ast.Constant(str(item)))] if shown in item:
                place = SourceLine(_COMPARED, value.lineno)
                if isinstance(formatter, ast.Lambda):
                    text = _text(formatter.body, {one.arg: _BARE for one in formatter.args.args})
                    return (
                        _Template(text, "", place, item=item) if text.count(_BARE) == 1 and "\0" not in text else None
                    )
                return _Template(_BARE, "", place, item=item) if item != shown else None
    return None


def _text(node: ast.AST, stands: Mapping[str, str]) -> str:
    """An f-string with what stands for its values, a zero for others; empty for another expression."""
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else stands.get(ast.unparse(part.value), "\0")
        for part in (node.values if isinstance(node, ast.JoinedStr) else ())
        if isinstance(part, (ast.Constant, ast.FormattedValue))
    )


def _template(example: _Example, shown: str | None) -> _Template | None:
    """The prompt of an example with {content} where placeholder and question stand, or the question alone.

    It is that alone where the example leaves the rest to the checkpoint's tokenizer.
    """
    prompt = next(
        (node for node in ast.walk(example.function) if isinstance(node, ast.JoinedStr) and "question" in _names(node)),
        None,
    )
    if prompt is None or not _names(prompt) <= {"question", "placeholder"}:
        return None
    if "placeholder" in _names(prompt) and (shown is None or shown not in strings(example.function)):
        return None
    stands = shown or ""
    text = _text(prompt, {"placeholder": stands})
    content = re.search(re.escape(stands) + r"(\s*)\0", text)
    whole = f"{text[: content.start()]}{_BARE}{text[content.end() :]}" if content else ""
    if content is None or (whole == _BARE and not shown) or "{" in text or "}" in text:
        return None
    return _Template(whole, content.group(1), example.at(prompt))


def _whole_prompt(example: _Example) -> tuple[str, SourceLine] | None:
    """The one prompt of an example that has no question: its model reads what an image shows."""
    found = [
        node.value.elt
        for node in ast.walk(example.function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.ListComp)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "prompts"
    ]
    texts = [node for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return (str(texts[0].value), example.at(texts[0])) if len(texts) == 1 else None


def _inserts(subject: Subject) -> bool:
    """Whether the processor puts items into a prompt that has nothing in their places, or into an encoder's."""
    found = subject.program.method(subject.processor, "_get_prompt_updates")
    encodes = subject.program.method(subject.processor, "create_encoder_prompt") is not None
    return encodes or (found is not None and "PromptInsertion" in mentions(found[2]))


def _names(node: ast.JoinedStr) -> set[str]:
    return {ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)}
