"""Writes the reference pages beside this file from the code: descriptor, errors, command line.

    python docs/reference/generate.py [--check]

`--check` exits 1 if a page is not what the code says. Nothing in these pages is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import click
from run_examples import FILE, Example, examples, kept

from scaffold.cli.app import COMMANDS, cli
from scaffold.cli.options import PROGRAM
from scaffold.descriptor import json_schema, load_descriptor, shipped_names
from scaffold.descriptor.load import shipped_path
from scaffold.descriptor.rules import BATCH_NAMES
from scaffold.diagnostics.catalogue import all_codes

HERE = Path(__file__).parent
MADE = "<!-- made by docs/reference/generate.py: do not edit -->\n\n"

STAGES = {
    "0": "Plan and snippets",
    "1": "YAML",
    "2": "Descriptor",
    "3": "Tower",
    "4": "Target tree",
    "5": "Conflicts",
    "6": "Proofs",
    "7": "Files",
}


def pages() -> dict[str, str]:
    """File name -> content."""
    return {
        "descriptor.md": MADE + "\n".join(descriptor_page()) + "\n",
        "errors.md": MADE + "\n".join(errors_page()) + "\n",
        "cli.md": MADE + "\n".join(cli_page()) + "\n",
        # For editors that take a schema from a file, and for a catalogue of schemas.
        "descriptor.schema.json": json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
    }


# -- descriptor --------------------------------------------------------------------------------------------------------


#: Patterns in words.
FORMS = {
    r"^[A-Za-z_][A-Za-z0-9_]*$": "name",
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$": "module",
    r"^self(\.[A-Za-z_][A-Za-z0-9_]*)+$": "attribute such as `self.a.b`",
    r"^\s*self\.": "[call](#calls)",
    r"^[\w.-]+/[\w.-]+$": "text `organisation/name`",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": "name of an example",
}
WORDS = {"integer": "whole number", "boolean": "true or false", "string": "text"}

#: A shipped descriptor to show for each layout, the plainest one; for a layout without one, what `init` drafts as it.
SHOWN = {"packed": "qwen2_vl", "tiles": "gemma3_mm", "paths": "step3_vl", "cut": "llava_next", "rows": "mistral3"}
DRAFTED = {"crops": "DeepseekOCR2ForCausalLM"}

Schema = dict[str, Any]


def descriptor_page() -> Iterator[str]:
    schema = json_schema()
    layouts = {branch["properties"]["layout"]["const"]: branch for branch in schema["oneOf"]}
    shared = _shared(layouts)
    own = {name: _own(branch["properties"], shared) for name, branch in layouts.items()}
    titles = _titles(shared, own, schema["$defs"])
    yield "# Descriptor reference\n"
    yield f"{_sentence(schema['description'])}\n"
    yield (
        "A descriptor is one page of YAML. Some keys belong to every port, the others to its layout. Each key changes "
        "the generated code, and a key of another layout is an error ([VCG313](errors.md#vcg313)). `vitcg-scaffold "
        "init` drafts a descriptor from a model's source ([how](../init.md)), `vitcg-scaffold validate` reports all "
        "mistakes at once, and `vitcg-scaffold validate --schema` prints the JSON Schema.\n"
    )
    yield (
        "In VS Code, install the extension `redhat.vscode-yaml`. It completes and checks every draft while you type, "
        "since the first line of a draft says where [descriptor.schema.json](descriptor.schema.json) is. For "
        "descriptors without that line, print the schema (`vitcg-scaffold validate --schema > descriptor.schema.json`) "
        "and name their files in `.vscode/settings.json`:\n"
    )
    yield "```json"
    yield '{"yaml.schemas": {"./descriptor.schema.json": ["descriptors/*.yaml", "*.vitcg.yaml"]}}'
    yield "```\n"
    yield "## The layouts\n"
    yield "`layout` says how the pixels of several items lie in memory. It decides which further keys there are.\n"
    yield "| layout | pixels | keys of its own | shipped |"
    yield "| --- | --- | --- | --- |"
    shipped = {name: load_descriptor(name).layout for name in shipped_names()}
    for name, branch in layouts.items():
        keys = ", ".join(f"`{key}`" for key in branch["properties"] if key not in shared)
        models = ", ".join(f"`{model}`" for model, layout in shipped.items() if layout == name)
        about = _cell(branch["properties"]["layout"]["description"])
        yield f"| [`{name}`](#layout-{name}) | {about} | {keys} | {models} |"
    yield "\n## Every layout\n"
    choice = {"enum": list(layouts), "description": "how pixels of several items lie in memory"}
    required = set.intersection(*(set(branch["required"]) for branch in layouts.values()))
    yield from _table({**shared, "layout": choice}, required, titles)
    yield from _sections(shared, titles, schema["$defs"], done := set[str]())
    for name, branch in layouts.items():
        yield f"\n## Layout `{name}`\n"
        if name in SHOWN:
            yield f"{_sentence(branch['description'])} Such as `{SHOWN[name]}`, without its `integration`:\n"
            yield f"```yaml\n{_shown(SHOWN[name])}```\n"
        else:
            yield f"{_sentence(branch['description'])} None is shipped; `init` drafts `{DRAFTED[name]}` as one.\n"
        yield "Its own keys. Where a key is also in the table of every layout, this table counts:\n"
        yield from _table(own[name], set(branch["required"]), titles)
        yield from _sections(own[name], titles, schema["$defs"], done)
    yield "\n## Expressions\n"
    yield f"{_sentence(schema['$defs']['Expression']['description'])} Division rounds down to whole numbers.\n"
    yield "An attribute may have subscripts: `self.config.vision_config.image_size[0]`.\n"
    yield (
        "Every expression may use the names of `let` and of `processor.values`. An expression about one item may use "
        "the columns of `sizes`. An expression about a batch during capture may use these:\n"
    )
    yield "| name | stands for |"
    yield "| --- | --- |"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in BATCH_NAMES.items())
    yield "\n## Calls\n"
    yield (
        "A call runs one method or module of the model: a path that starts with `self.`. Its arguments are names that "
        "the key may pass, numbers, texts, `True`, `False`, `None`, attribute paths and calls of the same kind. Put a "
        "call with a comma into quotes inside braces."
    )


def _shared(layouts: dict[str, Schema]) -> Schema:
    """The keys that every layout has, as most of them have them."""
    branches = [branch["properties"] for branch in layouts.values()]
    shared = {}
    for key in branches[0]:
        forms = [branch[key] for branch in branches if key in branch]
        if len(forms) == len(branches):
            shared[key] = max(forms, key=lambda form: sum(_same(form, other) for other in forms))
    return shared


def _own(keys: Schema, shared: Schema) -> Schema:
    """The keys of a layout that only it has, or has in another form."""
    return {key: value for key, value in keys.items() if key != "layout" and not _same(value, shared.get(key, {}))}


def _same(one: Schema, other: Schema) -> bool:
    """Whether two keys hold the same, whatever is said of them."""
    return {**one, "description": ""} == {**other, "description": ""}


def _titles(shared: Schema, own: dict[str, Schema], definitions: Schema) -> dict[str, str]:
    """Section -> heading: where it stands in a descriptor, and in which layout if that does not tell."""
    titles: dict[str, str] = {"Expression": "Expressions"}
    for layout, keys in (("", shared), *own.items()):
        for path, name in _found(keys, "", definitions):
            key = path.partition(".")[0]
            only = all(_same(other.get(key, keys[key]), keys[key]) for other in (shared, *own.values()))
            titles.setdefault(name, f"`{path}` of `{layout}`" if layout and not only else f"`{path}`")
    return titles


def _found(keys: Schema, at: str, definitions: Schema) -> Iterator[tuple[str, str]]:
    """Path and name of each section below, parents first."""
    for key, value in keys.items():
        path = f"{at}.{key}" if at else key
        for name, deeper in _references(value):
            yield path + deeper, name
            yield from _found(definitions[name].get("properties", {}), path + deeper, definitions)


def _references(value: Schema) -> Iterator[tuple[str, str]]:
    """Names of the sections that a value may be, and what is below it on the way there."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], ""
    for choice in (*value.get("oneOf", ()), *([value["items"]] if "items" in value else [])):
        yield from _references(choice)
    each = value.get("additionalProperties") or next(iter(value.get("properties", {}).values()), None)
    if each:
        yield from ((name, f".NAME{deeper}") for name, deeper in _references(each))


def _sections(keys: Schema, titles: dict[str, str], definitions: Schema, done: set[str]) -> Iterator[str]:
    """Each section below once, where it stands first."""
    for _, name in _found(keys, "", definitions):
        section = definitions[name]
        if name in done or "properties" not in section:
            continue
        done.add(name)
        yield f"\n### {titles[name]}\n"
        yield f"{_sentence(section['description'])}\n"
        yield from _table(section["properties"], set(section["required"]), titles)


def _shown(name: str) -> str:
    """A shipped descriptor up to what says nothing of the port itself."""
    path = shipped_path(name)
    assert path is not None
    return path.read_text(encoding="utf-8").partition("integration:\n")[0]


def _table(keys: Schema, required: set[str], titles: dict[str, str]) -> Iterator[str]:
    yield "| key | holds | meaning |"
    yield "| --- | --- | --- |"
    for key, value in keys.items():
        mark = " (required)" if key in required else ""
        yield f"| `{key}`{mark} | {_cell(_form(value, titles))} | {_cell(_meaning(value))} |"


def _meaning(value: Schema) -> str:
    text = str(value.get("description", "")).replace(" (A call such as self.visual(pixels, None).)", "")
    if "default" in value:
        text += f"; default `{_flow(value['default'])}`"
    if value.get("examples"):
        text += "; such as " + ", ".join(f"`{_flow(example)}`" for example in value["examples"])
    return text


def _flow(value: Any) -> str:
    """A value as it may stand in YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _form(value: Schema, titles: dict[str, str]) -> str:
    """What a value may be, in words."""
    if "$ref" in value:
        title = titles[value["$ref"].rpartition("/")[2]]
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        return f"[{'expression' if title == 'Expressions' else title}](#{anchor})"
    if "oneOf" in value:
        return " or ".join(_form(choice, titles) for choice in value["oneOf"])
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    kind = value.get("type")
    if isinstance(kind, list):
        return " or ".join(WORDS[name] for name in kind)
    if kind == "array":
        return f"list of {_many(_form(value['items'], titles))}"
    if kind == "object" and "properties" in value:
        names = ", ".join(f"`{key}`" for key in value["properties"])
        return f"{names}: {_form(next(iter(value['properties'].values())), titles)}"
    if kind == "object":
        each = value.get("additionalProperties")
        return f"names and their {_many(_form(each, titles))}" if each else "names and any values"
    if "pattern" in value:
        return FORMS[value["pattern"]]
    return WORDS[kind] if kind else "any value"


def _many(form: str) -> str:
    """The plural of a form, if it begins with a word."""
    return re.sub(r"^(\[?\w+)", r"\1s", form)


# -- errors ------------------------------------------------------------------------------------------------------------


def errors_page() -> Iterator[str]:
    yield "# Errors\n"
    yield (
        "Every message has a code; `vitcg-scaffold explain CODE` prints what is below. The first digit is the stage, "
        "and with it the exit code, which is listed in the [command line reference](cli.md#exit-codes).\n"
    )
    worked, printed = {example.code: example for example in examples()}, kept()
    links = ", ".join(f"[{code}](#{code.lower()})" for code in sorted(worked))
    yield (
        f"{len(worked)} codes have a worked example: what somebody wrote or ran, what the tool prints, and what is "
        f"right. They are the ones that contributors meet most: {links}.\n"
    )
    stage = ""
    for entry in all_codes().values():
        if entry.code[3] != stage:
            stage = entry.code[3]
            yield f"\n## {STAGES.get(stage, 'Other')}\n"
        yield f"### {entry.code}\n"
        yield f"**{_text(entry.title)}.** {_text(' '.join(entry.explanation.split()))}\n"
        if entry.code in worked:
            yield from _worked(worked[entry.code], printed[entry.code])


def _worked(example: Example, printed: str) -> Iterator[str]:
    """What somebody wrote or ran, what the tool says, and what is right."""
    if example.wrote:
        tab = " (`→` is a tab)" if "\t" in example.wrote else ""
        yield f"You write this in `{FILE}`{tab} and run `{PROGRAM} {example.wrong}`:\n"
        yield f"```yaml\n{_shown_lines(example.wrote)}\n```\n"
    else:
        beside = f", where `{FILE}` exists" if example.of else ""
        yield f"You run{beside}:\n"
        yield f"```sh\n{PROGRAM} {example.wrong}\n```\n"
    yield f"The tool prints:\n\n```text\n{printed}\n```\n"
    if example.wrote:
        yield f"Right is:\n\n```yaml\n{_shown_lines(example.right)}\n```\n"
    else:
        yield f"Run instead:\n\n```sh\n{PROGRAM} {example.instead}\n```\n"


def _shown_lines(text: str) -> str:
    """Lines of a descriptor, a tab as an arrow: a reader does not see a tab."""
    return text.replace("\t", "→")


# -- command line ------------------------------------------------------------------------------------------------------


def cli_page() -> Iterator[str]:
    yield "# Command line reference\n"
    root = click.Context(cli, info_name=PROGRAM)
    yield f"{_help(cli)}\n"
    yield "| command | |"
    yield "| --- | --- |"
    for name, (_, summary) in COMMANDS.items():
        yield f"| [`{name}`](#{name}) | {_cell(summary)} |"
    yield "\n## Options of every command\n"
    yield from _options(cli, root)
    root.meta["scaffold.invoking"] = True
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        yield f"\n## {name}\n"
        yield f"    {PROGRAM} {name} {' '.join(command.collect_usage_pieces(context))}\n"
        yield f"{_help(command)}\n"
        yield from _options(command, context)
        examples = re.findall(rf"^ *({PROGRAM} .*)$", command.epilog or "", re.MULTILINE)
        if examples:
            yield "\n".join(("", "```sh", *examples, "```"))
    yield COMPLETION
    yield "\n## Exit codes\n"
    yield "| code | meaning |"
    yield "| --- | --- |"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"


COMPLETION = f"""
## Completion

A shell completes commands, options, releases, architectures, error codes and descriptors. Type the line of your shell
where the command is found: in its start file, that is behind the line which activates the environment.

```sh
eval "$(_VITCG_SCAFFOLD_COMPLETE=bash_source {PROGRAM})"    # bash
eval "$(_VITCG_SCAFFOLD_COMPLETE=zsh_source {PROGRAM})"     # zsh, after compinit
_VITCG_SCAFFOLD_COMPLETE=fish_source {PROGRAM} | source     # fish
```"""


EXIT_CODES = {
    "0": "done, or nothing to do",
    "1": "drift, or changes pending under `--check`",
    "2": "wrong usage",
    "3": "the descriptor is invalid, or there is no input",
    "4": "the target tree is not understood, or does not run here",
    "5": "conflict with hand edits, or target files are dirty",
    "6": "a proof refused our own result; nothing was written",
    "7": "input or output failed, and what was begun was undone",
    "130, 143": "interrupted (SIGINT), terminated (SIGTERM)",
}


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            record = parameter.get_help_record(context)
            if record is not None:
                rows.append(f"| {_code(record[0])} | {_cell(record[1])} |")
    if rows:
        yield "| option | |"
        yield "| --- | --- |"
        yield from rows


def _help(command: click.Command) -> str:
    paragraphs = re.split(r"\n\s*\n", (command.help or "").strip())
    return "\n\n".join(_text(" ".join(paragraph.split())) for paragraph in paragraphs if "\b" not in paragraph)


# -- text --------------------------------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    text = _text(text.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".")


def _text(text: str) -> str:
    """Plain text as Markdown: outside of code, what looks like a tag is none."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    """Code in a cell. MkDocs shows the backslash of a bar in backquotes, and a forge splits the cell without one."""
    plain = " ".join(text.split())
    return f"<code>{escape(plain, quote=False).replace('|', '&#124;')}</code>" if "|" in plain else f"`{plain}`"


def main(arguments: list[str]) -> int:
    stale = []
    for name, content in pages().items():
        path = HERE / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(content, encoding="utf-8")
    for name in stale:
        print(f"{'outdated' if '--check' in arguments else 'written'}: docs/reference/{name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
