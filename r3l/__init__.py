"""r3l: reflect-then-retry reinforcement learning of language models, as a library.

The core runs in one process, without a service:

    policy, trainer = r3l.LocalPolicy("builtin"), r3l.Trainer("builtin", lr=1e-3)
    algorithm = r3l.R3L(group_size=8, guidance_text="advice")
    for task in r3l.tasks("workshop", 200):
        group = asyncio.run(r3l.explore(algorithm, task, policy, "workshop"))
        batch = r3l.Batch([group])
        trainer.step(algorithm.rows(batch), algorithm.loss)
        policy.load(trainer.weights())

The services are there too. Each name is imported at its first use:

    r3l.train({"learner.steps": 5})              # what r3l-launch does; returns the run's folder
    r3l.BufferClient(endpoint)                   # a client of a running buffer service
    r3l.Store(folder, read_only=True)            # the group store of a run
"""

from importlib import import_module
from typing import Any

from r3l.files.own_packages import PACKAGES, claim

PUBLIC = {
    "Task": "r3l.records",
    "Group": "r3l.records",
    "AttemptKey": "r3l.records",
    "GroupPlan": "r3l.records",
    "Trajectory": "r3l.records",
    "Origin": "r3l.records",
    "imported_attempt": "r3l.records.imported",
    "imported_chat": "r3l.records.imported",
    "SUCCESS": "r3l.records",
    "Algorithm": "r3l.algorithms.algorithm",
    "RatioAlgorithm": "r3l.algorithms.shared.ratio_correction",
    "ReflectAndRetry": "r3l.algorithms.shared.reflect_and_retry",
    "R3L": "r3l.algorithms.r3l",
    "GRPO": "r3l.algorithms.published.grpo",
    "DAPO": "r3l.algorithms.published.dapo",
    "GSPO": "r3l.algorithms.published.gspo",
    "OPMD": "r3l.algorithms.published.opmd",
    "RAFT": "r3l.algorithms.published.raft",
    "RLOO": "r3l.algorithms.published.rloo",
    "R3": "r3l.algorithms.published.r3",
    "ARPO": "r3l.algorithms.published.arpo",
    "SPEAR": "r3l.algorithms.published.spear",
    "RLVMR": "r3l.algorithms.published.rlvmr",
    "RLTF": "r3l.algorithms.published.rltf",
    "HiLL": "r3l.algorithms.published.hill",
    "SDPO": "r3l.algorithms.published.sdpo",
    "RLSD": "r3l.algorithms.published.rlsd",
    "ForwardKL": "r3l.algorithms.published.forward_kl",
    "PrefixRL": "r3l.algorithms.published.prefix_rl",
    "POPE": "r3l.algorithms.published.pope",
    "ExIt": "r3l.algorithms.published.exit",
    "RestartFromSuccess": "r3l.algorithms.published.restart_from_success",
    "EarlyExperience": "r3l.algorithms.published.early_experience",
    "ReflectGRPO": "r3l.algorithms.published.reflect_grpo",
    "CritiqueGRPO": "r3l.algorithms.published.critique_grpo",
    "Batch": "r3l.algorithms.batch",
    "Memory": "r3l.training.group_memory",
    "Query": "r3l.algorithms.queries",
    "Row": "r3l.algorithms.rows",
    "TokenBatch": "r3l.algorithms.losses",
    "Decoding": "r3l.rollout.exploration",
    "Exploration": "r3l.rollout.exploration",
    "Verdict": "r3l.rollout.exploration",
    "ChatFormat": "r3l.rollout.chat",
    "Policy": "r3l.rollout.policy_interface",
    "Sample": "r3l.rollout.policy_interface",
    "SampleParams": "r3l.rollout.policy_interface",
    "EnvSpec": "r3l.rollout.env_interface",
    "LocalPolicy": "r3l.training.local_policy",
    "Trainer": "r3l.training.trainer",
    "UserError": "r3l.errors",
    "explore": "envs.exploring",
    "tasks": "envs.exploring",
    "ListedTasks": "envs",
    "SeededTasks": "envs",
    "check_env": "envs.testing",
    "make_env": "envs.registry",
    "AsyncBufferClient": "buffer",
    "BufferClient": "buffer",
    "Lease": "buffer",
    "Store": "buffer.storage.store",
    "RunConfig": "r3l.run.config",
    "load_config": "r3l.run.config",
    "train": "launch.cli",
}
"""The public names and their modules."""
RENAMED = {"make_env": "make", "load_config": "load"}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"r3l has no {name!r}; it offers {', '.join(PUBLIC)}")
    try:
        if not PUBLIC[name].startswith("r3l."):
            claim()
        value = getattr(import_module(PUBLIC[name]), RENAMED.get(name, name))
    except ModuleNotFoundError as error:
        from r3l.errors import install_module, root_cause

        if error.name is None:  # transformers raises it in place of any error
            raise ImportError(
                f"r3l.{name} cannot be imported ({root_cause(error)}); reinstall or uninstall the "
                "library that fails"
            ) from error
        missing = error.name.partition(".")[0]
        if missing in ("r3l", *PACKAGES):
            raise
        raise ImportError(
            f"r3l.{name} needs {missing}, which is not installed; run {install_module(missing)}"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names. Other packages, such as r3l.records, can be imported too."""
    return sorted(PUBLIC)
