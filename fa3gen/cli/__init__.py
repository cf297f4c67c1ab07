"""The command line.  Each command lives in a module of its own, which is imported when the command is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from fa3gen.cli.lazy import LazyGroup
from fa3gen.errors import DiagnosticError, ExitCode, Fa3genError

# Not `list(...)` here: once the module of that command is imported, `list` is a name of this package.

#: Commands in the order of the help text, and what each does (their modules are not imported for the overview).
COMMANDS = {
    "list": "Show the kernels that a configuration asks for.",
    "render": "Render the committed sources, or check them.",
    "build": "Compile kernels and pack them into a bundle.",
    "inspect": "Show one kernel: plan, parameters, resources, code.",
    "explain": "Show which kernel of a bundle a call would take, and why.",
    "verify": "Run the test cases on a GPU and write the evidence.",
    "bench": "Time the kernels against others on a GPU.",
    "tune": "Search plans: build candidates, time them on a GPU, choose.",
    "doctor": "Show what this machine has and lacks.",
}


@click.group(
    cls=LazyGroup,
    modules="fa3gen.cli.",
    table=COMMANDS,
    title="Commands",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Generate FlashAttention kernels for Hopper GPUs.

    variants.yaml says which kernels exist; `fa3gen build` makes a bundle of them, which fa3.runtime runs.

    Exit codes: 0 fine, 1 something was found, 2 usage or configuration, 3 this machine lacks something.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; an error of fa3gen is printed, with its exit code."""
    try:
        code = cli.main(args=None if arguments is None else [*arguments], standalone_mode=False)
    except Fa3genError as error:
        click.echo(str(error) if isinstance(error, DiagnosticError) else f"error: {error}", err=True)
        sys.exit(int(error.exit_code))
    except click.ClickException as error:
        error.show()
        sys.exit(int(ExitCode.USAGE))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout, `head` say, has gone
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
