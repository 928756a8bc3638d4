"""`r3l-launch` whose actors have an engine that guesses: everything but vLLM is real."""

import os

from launch.backends.process_commands import ProcessCommands
from launch.cli import main

actor = ProcessCommands.actor


def simulated(commands: ProcessCommands, index: int) -> list[str]:
    """The command of an actor that guesses."""
    module = {"actors.cli": "tests.system.simulated_actor"}
    return [module.get(word, word) for word in actor(commands, index)]


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    ProcessCommands.actor = simulated  # type: ignore[method-assign]
    main()
