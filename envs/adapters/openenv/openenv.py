"""The environment of an OpenEnv server (openenv 0.10, also openenv-core 0.3; BSD):
`openenv:http://127.0.0.1:8000`. Needs `pip install 'r3l[openenv]'`.

    reset, step ─► server_session ─► the server      schema_texts: its JSON as text, by its schemas
                                                     server_pages: its schemas and tasks
"""

import math
from typing import Any, Literal

from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, text_in
from envs.adapters.openenv.schema_texts import ActionTexts, ObservationTexts, as_json
from envs.adapters.openenv.server_pages import address_of, description_of, schemas_of, tasks_of
from envs.adapters.openenv.server_session import Call, OpenEnvSession
from envs.base import SeededTasks, TaskSource
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

BY_TOOLS = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of action schemas whose actions call tools. Such servers are asked for their tools."""
REFUSED, RAISED = "VALIDATION_ERROR", "EXECUTION_ERROR"
"""Codes of errors that do not end the session: the action has a wrong form; the environment raised
on it."""
ENVELOPE: dict[str, tuple[tuple[type, ...], str]] = {
    "observation": ((dict,), "an object"),
    "reward": ((bool, int, float, type(None)), "a number or null"),
    "done": ((bool,), "true or false"),
}
"""What an answer to a reset or step holds."""
_known = set[str]()
"""Servers that have answered in this process. If one no longer does, it was lost."""


class OpenEnv:
    """A session of the server at `url`.

    `prompt`: what the system prompt says about the task; `reset`: further arguments of each reset;
    `splits`: the server's splits of tasks, keyed by r3l's, such as {train: train, eval: test};
    `max_steps`: step limit; `max_response_tokens`: token limit of a response; `success_threshold`:
    total reward of a full success; `sessions`: number of sessions in each of the `env.workers`
    processes, of which one at a time may call the server; `timeout_s`: time limit of a call. Keep
    `timeout_s` below env.step_s, so that a silent server fails one attempt and not the worker.
    `deterministic`: as in EnvSpec; `check_observations`: whether observations must fit the server's
    schema; `feedback`: fields of the server's state that become the closing remark of an attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        prompt: str = "",
        reset: dict[str, Any] | None = None,
        splits: dict[str, str] | None = None,
        max_steps: int = 50,
        max_response_tokens: int = 512,
        success_threshold: float = 1.0,
        sessions: int = 4,
        timeout_s: float = 50.0,
        deterministic: Literal["exact", "canonical", "no"] = "exact",
        check_observations: bool = True,
        feedback: list[str] | None = None,
    ) -> None:
        self.name, self.url = f"openenv:{url}", address_of(url)
        self.given, self.told = reset or {}, feedback or []
        if not isinstance(self.told, list) or not all(isinstance(f, str) for f in self.told):
            raise UserError(f"env option feedback is {feedback!r:.80}; it must be a list of names")
        if not isinstance(self.given, dict):
            raise UserError(f"env option reset is {reset!r:.80}; it must be arguments by name")
        if "seed" in self.given:
            raise UserError("env option reset: every task has its own seed; leave seed out")
        number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not number or not 0 < timeout_s < math.inf:
            raise UserError(f"env option timeout_s is {timeout_s!r:.80}; write seconds above 0")
        self.session = OpenEnvSession(self.name, self.url, timeout_s)
        try:
            schemas = schemas_of(self.name, self.url)
            self.observations = ObservationTexts(self.name, schemas, check_observations)
            self.actions = ActionTexts(schemas["action"], self._tools(schemas["action"]))
            prompt = prompt or description_of(self.name, self.url)
        except (UserError, EnvironmentFailed) as error:
            self.session.close()
            said = str(error).removeprefix("env ").removeprefix(f"{self.name}: ")
            if self.url not in _known:
                raise UserError(f"env {self.name}: {said}") from None
            if isinstance(error, EnvironmentFailed):
                raise
            raise self.session.failed("reset", "lost", said) from None
        _known.add(self.url)
        self.spec = EnvSpec(
            self.name,
            self._prompt(prompt or "You act in an environment."),
            max_steps,
            max_response_tokens,
            success_threshold=success_threshold,
            sessions=sessions,
            deterministic=deterministic,
        )

    @staticmethod
    def task_source(url: str, **options: Any) -> TaskSource:
        name, splits = f"openenv:{url}", options.get("splits")
        return tasks_of(name, address_of(url), splits) if splits else SeededTasks(name)

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Begins an episode. Opens a new session if the last one was lost."""
        asked = {"seed": seed} | self.given | (options or {})
        data = self._read("reset", self.session.begin("reset", asked))
        if data["done"]:
            raise self.session.failed("reset", "answer", "the episode is over at its beginning")
        return self.observations.text(data["observation"]), {}

    def step(self, action: str) -> StepAnswer:
        """Sends an action. If the server refuses the action, or fails to carry it out, the
        observation is the server's message."""
        text = text_in(action)
        chosen = None if text is None else self.actions.read(text)
        if chosen is None:
            problem = NO_ACTION if text is None else f"{NO_ACTION} It must be a JSON object."
            return problem, 0.0, False, False, {}
        data = self.session.ask("step", chosen, (REFUSED, RAISED))
        if data.get("code") == REFUSED:
            return f"That is not understood: {_reasons(data)}", 0.0, False, False, {}
        if data.get("code") == RAISED:
            said = str(data.get("message") or "The environment failed.")
            return said, 0.0, False, False, {"fault": "openenv_error"}
        data = self._read("step", data)
        seen = self.observations.text(data["observation"])
        return seen, data["reward"] or 0.0, data["done"], False, {}

    def feedback(self) -> str:
        """Returns the fields of the server's state that the option `feedback` names."""
        if not self.told:
            return ""
        state = self.session.ask("state")
        if missing := [name for name in self.told if name not in state]:
            why = f"it has no {missing[0]} (env option feedback); it has {', '.join(state)}"
            raise self.session.failed("state", "answer", why)
        said = {name: state[name] for name in self.told}
        return "\n".join(
            f"{name}: {value if isinstance(value, str) else as_json(value)}"
            for name, value in said.items()
        )

    def close(self) -> None:
        """Ends the session; a second call does nothing."""
        self.session.close()

    def _read(self, call: Call, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer. Raises EnvironmentFailed if a part is missing or it does not fit the
        server's schema."""
        for name, (kinds, rule) in ENVELOPE.items():
            if name not in data or type(data[name]) not in kinds:
                why = f"the answer's {name} must be {rule}, not {data.get(name)!r:.80}"
                raise self.session.failed(call, "answer", why)
        if why := self.observations.misfit(call, data):
            hint = "env option check_observations=false takes it as it is"
            why = f"the observation does not fit the server's schema: {why:.300} ({hint})"
            raise self.session.failed(call, "answer", why)
        return data

    def _tools(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the tools of a server whose actions call tools."""
        if schema.get("title") not in BY_TOOLS:
            return []
        data = self.session.begin("step", {"type": "list_tools"})
        tools = data["observation"].get("tools") if isinstance(data.get("observation"), dict) else 0
        if not isinstance(tools, list) or not all(
            isinstance(t, dict) and "name" in t for t in tools
        ):
            raise self.session.failed(
                "list_tools", "answer", f"these are not tools: {tools!r:.200}"
            )
        return tools

    def _prompt(self, task: str) -> str:
        how = HOW_TO_ANSWER.format(example=self.actions.example)
        return f"{task} {self.actions.rule}. {how}"


def _reasons(data: dict[str, Any]) -> str:
    """Returns what is wrong with a refused action, by the server's list of errors."""
    errors = data.get("errors")
    found = (
        [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    )
    reasons = []
    for error in found:
        at = error.get("loc")
        place = ".".join(map(str, at)) if isinstance(at, list) else ""
        reasons.append(f"{place}: {error.get('msg')}" if place else str(error.get("msg")))
    return "; ".join(reasons) or str(data.get("message"))
