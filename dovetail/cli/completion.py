"""Print the tab completion for your shell.

eval "$(dovetail completion bash)"      in ~/.bashrc
eval "$(dovetail completion zsh)"       in ~/.zshrc
dovetail completion fish | source       in config.fish
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the code that the shell evaluates."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["dovetail"], shell=arguments.shell))
    return 0
