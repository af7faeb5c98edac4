"""The root command, and the only place where errors become exit codes.

The group imports a command when the user invokes it, so that `--help` and completion stay fast. The one-line summaries
are here, next to the module of each command.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import click

from scaffold import __version__
from scaffold.cli.console import Console
from scaffold.cli.options import PROGRAM
from scaffold.diagnostics import Diagnostic, DiagnosticError, Exit
from scaffold.report import FORMATS
from scaffold.report.plain import one_line

#: Section of `--help` -> command -> (module below scaffold.cli, summary), in the order of use.
SECTIONS = {
    "Port a model": {
        "init": ("init", "Draft a descriptor from a run of a model."),
        "new": ("new", "Generate a model's encoder CUDA graph port into a vLLM tree, or adapters into a folder."),
        "plan": ("plan", "Show what `new` would change in a vLLM tree, and why."),
        "fix": ("fix", "Repair a port that a vLLM tree has already, in a few proven lines."),
        "pr": ("pr", "Describe a port as a pull request, and check the target's rules."),
        "revert": ("revert", "Undo the last run on a tree, also one that was killed."),
    },
    "Check and prove": {
        "validate": ("validate", "Check descriptors."),
        "verify": ("verify", "Prove a port numerically on the CPU, with a release's real classes."),
    },
    "Serve and measure": {
        "doctor": ("doctor", "Show what the plugin does in the installed vLLM, and why it leaves a model out."),
        "budgets": ("budgets", "Fit the ladder of token budgets to recorded traffic."),
        "profile": ("profile", "Show where the GPU time of a vision tower goes (needs a GPU)."),
        "bench": ("bench", "Measure an encoder on a GPU: eager, exact graphs, vLLM's manager, ours."),
    },
    "Look something up": {
        "explain": ("explain", "Explain an error code."),
        "inspect": ("inspect", "Show the protocol of a vLLM tree, or how a model's vision tower splits."),
    },
}
COMMANDS = {name: found for section in SECTIONS.values() for name, found in section.items()}


#: The version with which former names go.
FORMER_UNTIL = "0.2"
#: Former names of commands, and the words that each stands for now. They are in no list.
FORMER = {
    "protocol": ("inspect",),
    "tower": ("inspect",),
    "recover": ("revert", "--unfinished"),
    "schema": ("validate", "--schema"),
    "regen": ("new",),
}


class _ReaderGone(Exception):
    """The reader of our output is gone (`| head`). For click's own exception the exit code would be 1."""


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        if "scaffold.invoking" not in ctx.meta:  # only listed: by --help, or by the shell's completion
            return click.Command(cmd_name, short_help=summary, help=summary)
        command: click.Command = import_module(f"scaffold.cli.{module}").command
        command.params += [option for option in _output_options(inner=True) if option.name not in _names(command)]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta["scaffold.invoking"] = True
        if args and args[0] in FORMER:
            words = FORMER[args[0]]
            if args[0] == "regen" and not _names_descriptors(args[1:]):
                words = (*words, "--all")
            if not ctx.resilient_parsing:  # else a shell completes it
                ctx.ensure_object(Console).fault(
                    f"`{args[0]}` is `{' '.join(words)}` now; the old name goes with {FORMER_UNTIL}."
                )
            args = [*words, *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            if not close:
                raise
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{close[0]}'?", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error


def _names_descriptors(args: list[str]) -> bool:
    """Whether a call of `regen` had words that are no options and no values of options."""
    values = {"--into", "--format", "--color"}
    return any(
        not word.startswith("-") and before not in values for before, word in zip(["", *args], args, strict=False)
    )


def _names(command: click.Command) -> set[str | None]:
    return {parameter.name for parameter in command.params}


def _output_options(*, inner: bool = False) -> list[click.Option]:
    """The choices of output. A user may give them before the command and after it; the one after it wins."""

    def configure(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        console = ctx.ensure_object(Console)
        if value is not None and value is not False:
            setattr(console, str(option.name), value)

    formats = click.Choice(FORMATS)
    common: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": configure, "hidden": inner}
    return [
        click.Option(["--format", "output_format"], type=formats, help="The format of diagnostics [text].", **common),
        click.Option(
            ["--color"], type=click.Choice(["auto", "always", "never"]), help="Colours in the output [auto].", **common
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print results and errors only.", **common),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an unexpected error.", **common),
    ]


def _root() -> None:
    """Port vLLM vision encoders to CUDA graphs.

    A YAML descriptor of a model becomes a complete, proven `SupportsEncoderCudaGraph` implementation in your own vLLM
    tree, with its test entry, docs row and example entry.

    You may also give the options below after the command. With a machine format, stdout holds one document and nothing
    else.
    """


cli = _LazyGroup(
    PROGRAM,
    callback=_root,
    help=_root.__doc__,
    params=_output_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
    Example:
      vitcg-scaffold new internvl --vllm 0.22.0 --diff

    Exit codes: 0 done, 1 drift or changes pending, 2 usage, 3 descriptor, 4 target, 5 conflict, 6 proof, 7
    input/output, 130 and 143 interrupted.

    \b
    Completion in bash, where this command is found (or zsh_source, fish_source):
      eval "$(_VITCG_SCAFFOLD_COMPLETE=bash_source vitcg-scaffold)"
    """,
)
cli = click.version_option(__version__, "-V", "--version", prog_name=PROGRAM)(cli)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of `scaffold.diagnostics.Exit`."""
    _open_missing_streams()
    previous = signal.signal(signal.SIGTERM, _raise_terminated)
    # Modules and syntax trees live to the end of a run: at its usual pace the collector takes a fifth of `new`, and
    # frees nothing. The interpreter's last collection takes another 100 ms for memory that goes anyway.
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)
    words = sys.argv[1:] if arguments is None else arguments
    console = Console(words=tuple(words))
    code = int(Exit.OK)
    try:
        code, problems = _run(console)
        if problems is not None:
            console.finish(code, problems)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        code = int(Exit.IO)
        _drop_stdout()
        console.output_format = "text"  # there is no stdout for a document
        with contextlib.suppress(OSError):
            console.report([_io_failure(error)])
    finally:
        signal.signal(signal.SIGTERM, previous)
    sys.exit(code)


def _run(console: Console) -> tuple[int, list[Diagnostic] | None]:
    """The exit code, and the diagnostics still to report; None when the run stopped before it had a result."""
    try:
        done = cli.main(list(console.words), prog_name=PROGRAM, standalone_mode=False, obj=console)
        return int(done) if isinstance(done, int) else int(Exit.OK), []
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _stopped("Interrupted.", signal.SIGINT), None
    except _Terminated:
        return _stopped("Terminated.", signal.SIGTERM), None
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        text = shown.getvalue()
        for word in console.words:
            text = text.replace(word, one_line(word)) if not word.isprintable() else text
        console.fault(text)
        return error.exit_code, None
    except DiagnosticError as error:
        return int(error.exit), [*error.diagnostics, *_dump(error)]
    except _ReaderGone:
        _drop_stdout()
        return int(Exit.OK), []
    except Exception as error:
        if console.debug:
            import traceback

            console.fault(traceback.format_exc())
        if isinstance(error, OSError):
            return int(Exit.IO), [_io_failure(error)]
        what = f"{type(error).__name__}: {error}"
        console.fault(
            f"error: {one_line(what)}\n"
            "This is a bug of vitcg-scaffold. Run again with --debug and report the traceback."
        )
        own = [] if console.is_text else [Diagnostic("VCG625", what, help="run again with --debug")]
        return int(Exit.PROOF), own


def _stopped(message: str, number: int) -> int:
    click.echo(message, err=True)
    return 128 + number


def _dump(error: DiagnosticError) -> list[Diagnostic]:
    """The folder of the files that a proof refused."""
    from scaffold.workflow import RefusedResult, keep_refused

    return [keep_refused(error)] if isinstance(error, RefusedResult) else []


def _io_failure(error: OSError) -> Diagnostic:
    """A failure that no stage explains: most often the output, such as a full disk behind `> FILE`."""
    where = f": {error.filename}" if error.filename else ""
    return Diagnostic(
        "VCG710",
        f"reading or writing failed: {error.strerror or error}{where}",
        help="remove the cause, then run the command again; --debug shows where it happened",
    )


def _open_missing_streams() -> None:
    """Send text for a stream that the caller closed (`>&-`) to the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - to the process's end


def _drop_stdout() -> None:
    """Keep the interpreter from flushing into a broken stream when it ends: that would be exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Terminated(BaseException):
    """SIGTERM, raised in the main thread so that every `finally` runs (publishing rolls back)."""


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated
