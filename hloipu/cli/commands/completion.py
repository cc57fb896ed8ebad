"""`hloipu completion SHELL`: the script by which a shell completes commands, options and values."""

import click

from hloipu.cli import COMPLETE_VARIABLE
from hloipu.cli.saying import say

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, machines, passes and parameters.

    \b
      eval "$(hloipu completion bash)"                      in ~/.bashrc
      eval "$(hloipu completion zsh)"                       in ~/.zshrc, after compinit
      hloipu completion fish > ~/.config/fish/completions/hloipu.fish
    """
    from click.shell_completion import get_completion_class

    from hloipu.cli.application import application

    completion = get_completion_class(shell)
    if completion is not None:  # click has all of them
        say(completion(application, {}, "hloipu", COMPLETE_VARIABLE).source())
