"""Writes the reference pages beside this file from the code: descriptor, errors, command line.

    python docs/reference/generate.py [--check]

`--check` exits 1 if a page is not what the code says. Nothing in these pages is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from scaffold.cli.app import COMMANDS, cli
from scaffold.cli.options import PROGRAM
from scaffold.descriptor import json_schema
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
    }


# -- descriptor --------------------------------------------------------------------------------------------------------


#: Patterns in words.
FORMS = {
    r"^[A-Za-z_][A-Za-z0-9_]*$": "name",
    r"^self(\.[A-Za-z_][A-Za-z0-9_]*)+$": "attribute such as `self.a.b`",
}

#: A field with more values than this gets a table of them.
FEW = 4


def descriptor_page() -> Iterator[str]:
    schema = json_schema()
    yield "# Descriptor reference\n"
    yield f"{_sentence(schema['description'])}\n"
    yield (
        "`vitcg-scaffold schema` prints the same as JSON Schema, for an editor; `vitcg-scaffold validate FILE` checks "
        "a descriptor and reports all mistakes at once. The shipped ones are in `scaffold/descriptor/shipped/`. "
        "A field that nothing is generated from yet is refused by `new` ([VCG439](errors.md#vcg439), "
        "[VCG442](errors.md#vcg442)).\n"
    )
    yield "## Top level\n"
    lists: dict[str, dict[str, str]] = {}
    yield from _table(schema, lists)
    for name, section in sorted(schema["$defs"].items()):
        yield f"\n## {name}\n"
        if section.get("description"):
            yield f"{_sentence(section['description'])}\n"
        if section.get("properties"):
            yield from _table(section, lists)
        else:
            yield f"{_sentence(_form(section))}"
    for name, values in lists.items():
        yield f"\n## Values of {name}\n"
        yield "| value | meaning |"
        yield "| --- | --- |"
        yield from (f"| `{value}` | {_cell(meaning)} |" for value, meaning in values.items())


def _table(section: dict[str, Any], lists: dict[str, dict[str, str]]) -> Iterator[str]:
    """A section's keys. Long lists of values go into `lists`, by the name of their heading."""
    required = set(section.get("required", ()))
    yield "| key | holds | meaning |"
    yield "| --- | --- | --- |"
    for key, value in section["properties"].items():
        mark = " (required)" if key in required else ""
        form, meaning = _form(value), _meaning(value)
        values = _values(value)
        if len(values) > FEW:
            name = next((name for name, known in lists.items() if known == values), key)
            lists[name] = values
            first = next(iter(values))
            kind = "mapping of" if "properties" in value else "one of"
            form = f"{kind} [{len(values)} values](#values-of-{name.lower()}), such as `{first}`"
            meaning = re.sub(r" ?\(.*\)", "", meaning, count=1)
        yield f"| `{key}`{mark} | {_cell(form)} | {_cell(meaning)} |"


def _values(value: dict[str, Any]) -> dict[str, str]:
    """Value -> meaning: of the keys of a mapping, or as a description lists them: `what (one: meaning; two: ...)`."""
    if "properties" in value:
        return {key: str(entry.get("description", "")) for key, entry in value["properties"].items()}
    listed = re.search(r"\((.*)\)", str(value.get("description", "")))
    if "enum" not in value or listed is None:
        return {}
    choices = "|".join(map(re.escape, value["enum"]))
    parts = re.split(rf"(?:^|; )({choices}): ", listed[1])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _meaning(value: dict[str, Any]) -> str:
    text = str(value.get("description", ""))
    if "default" in value:
        text += f"; default `{value['default']}`"
    if value.get("examples"):
        text += "; such as " + ", ".join(f"`{example}`" for example in value["examples"])
    return text


def _form(value: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value or "oneOf" in value:
        return " or ".join(_form(choice) for choice in value.get("anyOf") or value["oneOf"])
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    kind = value.get("type")
    if kind == "array":
        return f"list of {_form(value['items'])}" if "items" in value else "list"
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"name to {_form(value['additionalProperties'])}"
    if kind == "object" and "properties" in value:
        return "mapping of " + ", ".join(f"`{key}`" for key in value["properties"])
    if kind == "string":
        if "pattern" not in value:
            return "text"
        return FORMS.get(value["pattern"]) or f"text of the form `{value['pattern']}`"
    words = {"integer": "whole number", "boolean": "true or false", "object": "mapping", "null": "nothing"}
    return words.get(str(kind), str(kind or "any value"))


# -- errors ------------------------------------------------------------------------------------------------------------


def errors_page() -> Iterator[str]:
    yield "# Errors\n"
    yield (
        "Every message has a code; `vitcg-scaffold explain CODE` prints what is below. The first digit is the stage, "
        "and with it the exit code, which is listed in the [command line reference](cli.md#exit-codes).\n"
    )
    stage = ""
    for entry in all_codes().values():
        if entry.code[3] != stage:
            stage = entry.code[3]
            yield f"\n## {STAGES.get(stage, 'Other')}\n"
        yield f"### {entry.code}\n"
        yield f"**{_text(entry.title)}.** {_text(' '.join(entry.explanation.split()))}\n"


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
    yield "\n## Exit codes\n"
    yield "| code | meaning |"
    yield "| --- | --- |"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"


EXIT_CODES = {
    "0": "done, or nothing to do",
    "1": "drift, or changes pending under `--check`",
    "2": "wrong usage",
    "3": "the descriptor is invalid, or there is no input",
    "4": "the target tree is not understood",
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
                rows.append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
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
