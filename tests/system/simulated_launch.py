"""`r3l-launch` whose actors have an engine that guesses: everything but vLLM is real."""

import os
from dataclasses import replace

from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Command
from launch.cli import main

actor = ProcessCommands.actor


def simulated(commands: ProcessCommands, index: int) -> Command:
    """The command of an actor that guesses."""
    module, made = {"actors.cli": "tests.system.simulated_actor"}, actor(commands, index)
    return replace(made, words=[module.get(word, word) for word in made.words])


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    ProcessCommands.actor = simulated  # type: ignore[method-assign]
    main()
