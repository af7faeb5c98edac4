"""`vitcg-scaffold init`: draft a descriptor from a run of a model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.cli.options import (
    check_trusted,
    command_line,
    complete_model,
    config_option,
    examples,
    open_target,
    package_option,
    recipe_option,
    set_option,
    target_option,
    target_words,
    trust_option,
)
from scaffold.cli.output import write_output
from scaffold.cli.watching import TimedLine
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.draft import Draft, Question
    from scaffold.protocol import SourceTree
    from scaffold.watch import Recording


#: The name of a draft without a file, in diagnostics.
_STDOUT = "<draft>"


@click.command(
    "init",
    epilog=examples(
        "init Qwen2VLForConditionalGeneration --vllm 0.21.0 -o qwen2_vl.yaml",
        "init vllm/model_executor/models/internvl.py --vllm ~/vllm --yes",
    ),
)
@click.argument("model", metavar="MODEL", shell_complete=complete_model)
@target_option(required=True)
@package_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the draft to this file [standard output].",
)
@click.option(
    "--answer", "given", multiple=True, metavar="KEY=VALUE", help="Answer the question KEY, such as budget.min=64."
)
@click.option(
    "--layout",
    type=click.Choice(["packed", "tiles", "cut", "crops", "rows"]),
    help="Draft this layout [the one that fits the model best].",
)
@click.option(
    "--adapter",
    is_flag=True,
    help="Draft graphs of videos, too, where a port in a tree would run the model's code twice for them.",
)
@click.option("--audio", is_flag=True, help="Draft the encoder of sound of a model that has images or videos, too.")
@click.option("--no-input", is_flag=True, help="Ask nothing: write open questions as TODO.")
@click.option("--yes", is_flag=True, help="Take the first candidate of every question, and say which.")
@click.option("--force", is_flag=True, help="Replace an existing output file. Draft where a base's port serves, too.")
@click.option(
    "--no-run",
    is_flag=True,
    help="Run nothing of the tree. There is no draft, but a file with what the source tells.",
)
@click.option("--run", is_flag=True, hidden=True)  # asked for what is the default now
@click.option(
    "--show-recording",
    is_flag=True,
    help="Draft nothing: run the model, and print which calls it made. This runs the tree's code, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the recording as JSON.")
@recipe_option
@config_option
@set_option
@trust_option
@click.pass_obj
def command(
    console: Console,
    model: str,
    vllm: str,
    package: str | None,
    output: Path | None,
    given: tuple[str, ...],
    layout: str | None,
    adapter: bool,
    audio: bool,
    no_input: bool,
    yes: bool,
    force: bool,
    no_run: bool,
    run: bool,
    show_recording: bool,
    as_json: bool,
    recipe: str | None,
    config: str | None,
    values: dict[str, Any],
    trust_remote_code: bool,
) -> None:
    """Draft a descriptor from a run of a model. This runs the tree's code, as `verify` does.

    MODEL is an architecture of the tree's registry, a model's file or module, or FILE:CLASS. `init` makes it small,
    with random weights, and runs it on a few items of each modality: with your rights, in a process of its own. It
    drafts from the calls that it saw. --recipe, --config, --set and --trust-remote-code build the model.

    A comment beside each value says what showed it. On a terminal `init` asks for every value that nothing shows: an
    empty answer takes the first candidate, `-` leaves the question open. An open question becomes a TODO, and
    `validate` reports it with the lines to look at. With --yes the first candidate answers every question; a question
    without one exits with 3. Where no layout fits, or the model cannot be built, the output file gets what is known of
    the model and what is in the way; no command takes it for a descriptor. Where the port of a base serves the model,
    `init` says so and ends.
    """
    from scaffold.descriptor.worth import worth
    from scaffold.draft import (
        NoDraft,
        draft_descriptor,
        find_shipped,
        inherited_port,
        interview,
        refuse_model,
        refuse_release,
    )

    if yes and no_input:
        raise click.UsageError("--yes and --no-input exclude each other: the one answers, the other leaves TODO.")
    building: dict[str, Any] = {
        "recipe": recipe,
        "config": config,
        "values": values,
        "trust_remote_code": trust_remote_code,
    }
    if as_json and not show_recording:
        raise click.UsageError("--json goes with --show-recording.")
    if audio and recipe:
        raise click.UsageError("--audio goes without --recipe: a recipe says itself which inputs it makes.")
    building["modalities"] = ("audio",) if audio else ()
    if no_run and (run or show_recording or any(building.values())):
        raise click.UsageError("--no-run runs nothing: leave out what builds, runs or shows a model.")
    answers = dict(_pair(text) for text in given)
    if output is not None:
        _refuse_existing(output, force)
    if lacks := refuse_release(vllm, layout):
        console.note(lacks)
    tree = open_target(console, vllm, package).tree
    check_trusted(trust_remote_code, config)
    if show_recording:
        _show_recording(console, _record(console, tree, model, building), as_json)
        return
    if not (force or audio) and (served := inherited_port(tree, model)) is not None:
        console.report([served])
        return
    shipped = find_shipped(tree, model, vllm) if package is None and not audio else None
    header = _editor_line(output)
    try:
        try:
            refuse_model(tree, model)
            recording = _recorded(console, tree, model, building, no_run)
        finally:  # behind the line that code runs, which is the first
            if shipped is not None:
                console.report([shipped], more=True)
        if yes:
            first = partial(_take_first, console)
            draft = interview(tree, model, recording, answers, first, layout, adapter=adapter)
        elif not no_input and sys.stdin.isatty() and sys.stderr.isatty():
            refuse = partial(_refuse, console)
            asked = partial(_ask, console)
            draft = interview(tree, model, recording, answers, asked, layout, refuse, adapter=adapter)
        else:
            draft = draft_descriptor(tree, model, recording, answers, layout, adapter=adapter)
    except NoDraft as refusal:
        if output is not None:
            write_output(output, header + refusal.start)
            console.result(f"wrote {output}: no port, but what is known of the model and what is in the way of one")
            raise
        console.report(refusal.diagnostics)
        start = command_line(*console.words, "-o", "start.yaml")
        console.note(f"No draft. For a file with what is known of the model: {start}")
        raise click.exceptions.Exit(int(refusal.exit)) from None
    draft = replace(draft, text=header + draft.text)
    port, problems = _loaded(draft, output)
    _check_answers(draft, problems)
    if yes and draft.open:
        raise DiagnosticError(_unanswered(draft))
    if output is None:
        console.document(draft.text)
    else:
        write_output(output, draft.text)
        console.result(f"wrote {output}")
    open_questions = [replace(found, severity=Severity.WARNING) for found in problems if found.code == "VCG390"]
    gain = worth(port) if port is not None else None
    console.report([*draft.notes, *([gain] if gain is not None else []), *open_questions])
    _say_next(console, draft, output, _ending(draft, port, tree, output, target_words(vllm, package)))


def _editor_line(output: Path | None) -> str:
    """The first line of a draft, for an editor's YAML server: where the tool has the schema.

    Relative where the schema is below the current folder (a checkout, or a virtual environment in it), so that the file
    can be shared; else absolute. The server reads an address up to the first space.
    """
    from scaffold.descriptor import EDITOR_LINE, schema_file

    here, schema = Path.cwd().resolve(), schema_file().resolve()
    folder = output.parent.resolve() if output is not None else here
    address = schema.as_uri()
    if schema.is_relative_to(here) and folder.is_relative_to(here):
        relative = Path(os.path.relpath(schema, folder)).as_posix()
        address = relative if " " not in relative else address
    return f"{EDITOR_LINE} $schema={address}\n"


def _loaded(draft: Draft, output: Path | None) -> tuple[AnyPort | None, tuple[Diagnostic, ...]]:
    """The port that a draft describes; where it describes none yet, the problems at their places in its file."""
    from scaffold.descriptor import load_descriptor_text

    try:
        return load_descriptor_text(draft.text, str(output) if output is not None else _STDOUT), ()
    except DiagnosticError as error:
        return None, error.diagnostics


def _record(console: Console, tree: SourceTree, model: str, building: dict[str, Any]) -> Recording:
    """A recording of the model. The first line says that code runs."""
    from scaffold.verify.numeric import record_run
    from scaffold.workflow import recording_request

    request = recording_request(tree, model, **building)
    console.note(f"Runs the code of {tree.label}: its model with tiny random weights, in a process of its own.")
    with TimedLine(console) as status:
        status.status("imports vLLM")
        return record_run(request, watch=status)


def _recorded(console: Console, tree: SourceTree, model: str, building: dict[str, Any], no_run: bool) -> Recording:
    """A recording of the model. Raises `NoDraft` where it cannot be run, or nothing may run."""
    from scaffold.draft import undrafted

    if no_run:
        raise undrafted(tree, model)
    try:
        return _record(console, tree, model, building)
    except DiagnosticError as error:
        raise undrafted(tree, model, error.diagnostics) from None


def _show_recording(console: Console, recording: Recording, as_json: bool) -> None:
    from scaffold.watch import show_recording

    if as_json:
        console.document(json.dumps(recording.to_json(), indent=1) + "\n")
    else:
        console.block("\n".join(show_recording(recording)))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise click.UsageError(f"`--answer {text}` is not KEY=VALUE")
    return key.strip(), value.strip()


def _ask(console: Console, question: Question) -> str | None:
    """The answer that is typed on the terminal; `-` leaves the question open."""
    console.fault("")
    console.fault(f"{question.key}: {question.what}")
    for candidate in question.candidates:
        console.fault(f"  candidate: {candidate}")
    for look in question.look:
        console.fault(f"  look at: {look}")
    first = "Enter takes the first candidate, `-` leaves" if question.candidates else "Enter leaves"
    console.fault(f"  {first} the question open: TODO in the draft")
    default = question.candidates[0].value if question.candidates else "-"
    try:
        answer = str(click.prompt(question.key, default=default, err=True)).strip()
    except click.Abort:
        raise KeyboardInterrupt from None  # "Interrupted." gets a line of its own, as everywhere
    return None if answer in ("", "-") else answer


def _refuse(console: Console, problem: Diagnostic) -> None:
    """Say why the answer that was typed cannot be; its question follows once more."""
    console.fault(f"  this cannot be: {problem.message}")


def _take_first(console: Console, question: Question) -> str | None:
    """The first candidate, which the console prints; None where there is no candidate."""
    if not question.candidates:
        return None
    console.note(f"{question.key}: took the first candidate, {question.candidates[0]}")
    return question.candidates[0].value


def _check_answers(draft: Draft, problems: Sequence[Diagnostic]) -> None:
    """Refuse answers that no question asked for, and those that make the descriptor wrong."""
    if draft.unused:
        from difflib import get_close_matches

        asked = [question.key for question in draft.questions]
        near = get_close_matches(draft.unused[0], asked, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else f" Questions: {', '.join(asked) or 'none'}."
        raise click.UsageError(f"nothing asks for `{draft.unused[0]}`.{hint}")
    wrong = [problem for problem in problems if problem.code != "VCG390" and problem.exit]
    if wrong:
        lines = draft.text.splitlines()
        raise DiagnosticError(_with_line(problem, lines) for problem in wrong)


def _with_line(problem: Diagnostic, lines: list[str]) -> Diagnostic:
    """The problem with the line of the draft that it is about, which no file holds."""
    if problem.span is None:
        return problem
    text = lines[problem.span.line - 1].strip()
    return replace(problem, message=f"{problem.message}: `{text}`", span=replace(problem.span, file=_STDOUT), notes=())


def _unanswered(draft: Draft) -> list[Diagnostic]:
    """The open questions where no draft is written."""
    return [
        Diagnostic(
            "VCG390",
            f"`{question.key}` has no candidate: {question.what}",
            help=f"say `--answer {question.key}=VALUE`; without --yes, the draft has a TODO there",
            notes=tuple(f"look at: {look}" for look in question.look),
        )
        for question in draft.open
    ]


def _ending(
    draft: Draft, port: AnyPort | None, tree: SourceTree, output: Path | None, target: list[str]
) -> tuple[str, list[str]]:
    """The result that a written draft without an open question gives, and the next commands; nothing of others."""
    from scaffold.cli.reentry import adapter_commands
    from scaffold.plan import plan_changes
    from scaffold.protocol import read_protocol

    if output is None or draft.open or port is None:
        return "", []
    ported = any(note.code == "VCG485" for note in draft.notes)
    following = [command_line("plan", output, *target, *(["--replace"] if ported else []))]
    try:
        plan = plan_changes(port, tree, read_protocol(tree), replace=ported)
    except DiagnosticError:
        return "", following  # `plan` says why
    if not plan.reenters:
        return ": this gives a port for a tree", following
    adapter = adapter_commands(port, plan, str(output), target)
    if not adapter:
        return ": a port would run the model's code twice, and no adapter can be made (VCG466)", following
    return ": this gives an adapter for the plugin, and no port for a tree (VCG466)", adapter


def _say_next(console: Console, draft: Draft, output: Path | None, ending: tuple[str, list[str]]) -> None:
    """The next commands, as they can be typed: commands take a descriptor from a file."""
    asked, left = len(draft.questions), len(draft.open)
    name = output if output is not None else f"{draft.name}.yaml"
    state = f"{asked} question{'s' * (asked != 1)}, all answered" if asked else "No question is open"
    gives, following = ending
    if left:
        state = f"{left} of {asked} question{'s' * (asked != 1)} open"
    if output is None:
        following = [command_line(*console.words, "-o", name)]
    elif left:
        state, following = f"{state}: answer them in {name}", [command_line("validate", name)]
    console.note(f"{state}{gives}. Next: {', then '.join(f'`{one}`' for one in following)}")


def _refuse_existing(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise DiagnosticError.of(
            "VCG510",
            f"`{output}` exists",
            Span(str(output), 1, 1, 1, 1),
            "choose another name, or replace it with --force",
        )
