"""The command line: python -m specviz, or specviz for short. Each command is a file in specviz/commands.

Exit status: 0 if all is well, 1 where a decoder is convicted or not exact, 2 for whatever cannot be done (one line on
stderr names the reason), 130 when interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

import specviz
from specviz.commands import audit, generate, mutants, profile, prove, shared

COMMANDS = {"generate": generate, "profile": profile, "prove": prove, "audit": audit, "mutants": mutants}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, without the usage that argparse prints before it: --help shows that."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments=None) -> int:
    """Run one command; return its exit status. arguments: a list of strings, by default those of the shell."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a notebook's streams take every character
            stream.reconfigure(errors="replace")  # a code page without γ prints "?" for it
    parser = Parser(prog="specviz", description="Speculative decoding: see it, prove it, measure it.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {specviz.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        about = command.__doc__
        subparser = subparsers.add_parser(name, help=about.splitlines()[0], description=about)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, parser=subparser)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        getattr(options, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    try:
        shared.check_files(options)
        return options.run(options)
    except (ValueError, FloatingPointError, OSError) as error:
        print(f"{options.parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{options.parser.prog}: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
