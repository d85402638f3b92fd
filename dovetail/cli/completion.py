"""Print the tab completion for your shell.

eval "$(dovetail completion bash)"      in ~/.bashrc
eval "$(dovetail completion zsh)"       in ~/.zshrc
dovetail completion fish | source       in config.fish
"""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the code that the shell evaluates."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["dovetail"], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints what may come next on the shell's command line, and exits."""
    from argcomplete.finders import CompletionFinder

    class Finder(CompletionFinder):
        def collect_completions(self, active_parsers: Any, *others: Any) -> list[str]:
            """Completes key=value after an option, too, where argparse expects no more words."""
            last = active_parsers[-1]
            if not last.active_actions:
                last.active_actions = [each for each in last._actions if each.dest == "overrides"]
            return super().collect_completions(active_parsers, *others)

    Finder()(parser, always_complete_options="long")
