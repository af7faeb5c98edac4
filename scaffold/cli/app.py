"""The root command, and the only place where errors become exit codes.

Commands are loaded when they are used, so that `--help` and completion stay fast: their one-line summaries stand
here, next to the module that holds each of them.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

import click

from scaffold import __version__
from scaffold.cli.console import Console
from scaffold.diagnostics import DiagnosticError, Exit

#: command -> (module below scaffold.cli, summary), in the order of use.
COMMANDS = {
    "new": ("new", "Generate a model's encoder CUDA graph port into a vLLM tree."),
    "plan": ("plan", "Show what `new` would change in a vLLM tree, and why."),
    "validate": ("validate", "Check descriptors."),
    "schema": ("schema", "Print the JSON Schema of descriptors."),
    "protocol": ("protocol", "Show the encoder CUDA graph protocol of a vLLM tree."),
    "tower": ("tower", "Show how a vision tower splits into data and metadata, and its capture hazards."),
    "verify": ("verify", "Prove a port numerically on the CPU, with a release's real classes."),
    "regen": ("regen", "Regenerate `generated/`, or check it for drift."),
    "revert": ("revert", "Undo the last run on a tree."),
    "recover": ("recover", "Repair a tree after a killed run."),
    "explain": ("explain", "Explain an error code."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if ctx.resilient_parsing or _only_listing(ctx):
            return click.Command(cmd_name, short_help=COMMANDS[cmd_name][1], help=COMMANDS[cmd_name][1])
        command: click.Command = import_module(f"scaffold.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta["scaffold.invoking"] = True
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            if close:
                error.message += f" Did you mean '{close[0]}'?"
            raise


def _only_listing(ctx: click.Context) -> bool:
    return "scaffold.invoking" not in ctx.meta


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 drift, 2 usage, 3 descriptor, 4 target, 5 conflict, 6 proof, 7 input/output.",
)
@click.version_option(__version__, "-V", "--version", prog_name="vitcg-scaffold")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    help="How diagnostics are written.",
)
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours in the output.")
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
@click.pass_context
def cli(ctx: click.Context, output_format: str, color: str, quiet: bool, debug: bool) -> None:
    """Port vLLM vision encoders to CUDA graphs.

    A YAML descriptor of a model becomes a complete, proven `SupportsEncoderCudaGraph` implementation in your own vLLM
    tree, with its test entry, docs row and example entry.

    Start with `vitcg-scaffold new internvl --vllm 0.22.0 --diff`.
    """
    ctx.obj = Console(output_format=output_format, color=color, quiet=quiet, debug=debug)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of `scaffold.diagnostics.Exit`."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    debug = "--debug" in (arguments if arguments is not None else sys.argv)
    try:
        code = cli.main(arguments, prog_name="vitcg-scaffold", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        code = 128 + signal.SIGINT
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except DiagnosticError as error:
        # A command that was set up reports its own errors (see `Console.report`); this is the option parser's turn.
        Console().report(error.diagnostics)
        code = error.exit
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        code = 128 + signal.SIGINT
    except _Terminated:
        click.echo("Terminated.", err=True)
        code = 128 + signal.SIGTERM
    except BrokenPipeError:
        # The reader went away (`| head`): not an error of ours. Keep the interpreter from flushing into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"error: {type(error).__name__}: {error}\n"
            "This is a bug of vitcg-scaffold. Run again with --debug and report the traceback.",
            err=True,
        )
        code = Exit.PROOF
    sys.exit(int(code) if isinstance(code, int) else 0)


class _Terminated(BaseException):
    """SIGTERM, raised in the main thread so that every `finally` runs (publishing rolls back)."""


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


__all__ = ["COMMANDS", "cli", "main"]
