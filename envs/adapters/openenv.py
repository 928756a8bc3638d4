"""The environment of an OpenEnv server (openenv-core, BSD): `openenv:http://127.0.0.1:8000`. Needs
`pip install 'r3l[openenv]'`. Each instance opens a session over WebSocket:

    {"type": "reset", "data": {"seed": 0}}    or    {"type": "step", "data": ACTION}
    ─►  {"type": "observation", "data": {"observation": {…}, "reward": 1, "done": false}}

ACTION is a JSON object. If its schema requires only one field, the policy may give just the value.
"""

import json
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Literal

import httpx

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, text_in
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer
from r3l.run.process.endpoints import is_near

LARGEST = 32 << 20  # bytes of a message
BY_TOOLS = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of action schemas whose actions call tools. Such servers are asked for their tools."""
FAULTS: dict[str, dict[str, str]] = {
    "VALIDATION_ERROR": {},
    "EXECUTION_ERROR": {"fault": "openenv_error"},
}
"""The `info` of a step after an error that does not end the session, keyed by the error's code."""


class OpenEnv:
    """A session of the server at `url`.

    `prompt`: the system prompt; `reset`: further arguments of each reset; `max_steps`: step limit;
    `success_threshold`: total reward of a full success; `deterministic`: as in EnvSpec; `sessions`:
    number of sessions in each of the `env.workers` processes; in a process, one session at a time
    may call the server; `timeout_s`: time limit of a call. Keep `timeout_s` below env.step_s, so
    that a silent server fails one attempt and not the worker.
    """

    def __init__(
        self,
        url: str,
        *,
        prompt: str = "",
        reset: dict[str, Any] | None = None,
        max_steps: int = 50,
        success_threshold: float = 1.0,
        sessions: int = 4,
        timeout_s: float = 50.0,
        deterministic: Literal["exact", "canonical", "no"] = "exact",
    ) -> None:
        self.name, self.url, self.given = f"openenv:{url}", url.rstrip("/"), reset or {}
        self.timeout_s = timeout_s
        self.library = requirements.package(self.name, "websockets", "openenv")
        self.socket: Any = None
        self.session = ExitStack()
        self.schema = self._schema()
        self.tools: list[Any] = []
        if self.schema.get("title") in BY_TOOLS:
            self.tools = self._ask("step", {"type": "list_tools"})["observation"]["tools"]
        required = self.schema.get("required", [])
        self.field = required[0] if len(required) == 1 and not self.tools else ""
        self.spec = EnvSpec(
            self.name,
            prompt or self._prompt(),
            max_steps,
            success_threshold=success_threshold,
            sessions=sessions,
            deterministic=deterministic,
        )

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Begins an episode. Opens a new session if the server has closed the last one."""
        asked = {"seed": seed} | self.given | (options or {})
        try:
            data = self._ask("reset", asked)
        except self.library.ConnectionClosed:
            self.close()
            data = self._ask("reset", asked)
        return _text(data["observation"]), {}

    def step(self, action: str) -> StepAnswer:
        """Sends an action. If the server refuses the action, or fails to carry it out, the
        observation is the server's message."""
        chosen = self._action(action)
        if chosen is None:
            return NO_ACTION, 0.0, False, False, {}
        data = self._ask("step", chosen, refusals=tuple(FAULTS))
        if "observation" not in data:
            info = FAULTS[data["code"]]
            why = data["message"] if info else f"That is not understood: {_text(data)}"
            return str(why), 0.0, False, False, dict(info)
        reward = float(data.get("reward") or 0.0)
        return _text(data["observation"]), reward, bool(data.get("done")), False, {}

    def close(self) -> None:
        """Ends the session; a second call does nothing."""
        self.socket = None
        self.session.close()

    def _ask(
        self, kind: str, data: dict[str, Any], refusals: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Returns the server's answer, or an error whose code is in `refusals`. Raises
        EnvironmentFailed for other errors, and after `timeout_s` without an answer."""
        if self.socket is None:
            address = "ws" + self.url.removeprefix("http") + "/ws"
            client = import_module("websockets.sync.client")
            self.socket = self.session.enter_context(client.connect(address, max_size=LARGEST))
        self.socket.send(json.dumps({"type": kind, "data": data}))
        try:
            answer = json.loads(self.socket.recv(timeout=self.timeout_s))
        except TimeoutError:
            self.close()
            why = f"no answer in {self.timeout_s:g} s (env option timeout_s)"
            raise self._failed(kind, why) from None
        if answer["type"] == "error" and answer["data"].get("code") not in refusals:
            self.close()
            raise self._failed(kind, answer["data"].get("message"))
        return dict(answer["data"])

    def _failed(self, kind: str, why: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self.name}: {kind}: {why}", cause="openenv_error")

    def _schema(self) -> dict[str, Any]:
        """Returns the JSON schema of an action. Raises UserError if there is no OpenEnv server."""
        try:
            schema, far = f"{self.url}/schema", not is_near(self.url)
            answer = httpx.get(schema, timeout=10.0, trust_env=far)
            return dict(answer.raise_for_status().json()["action"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            raise UserError(
                f"env {self.name}: no OpenEnv server answers at /schema; start the server, "
                "and give its full address, with http:// and the port"
            ) from None

    def _action(self, response: str) -> dict[str, Any] | None:
        text = text_in(response)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if self.field and not isinstance(value, dict):
            of_text = self.schema["properties"][self.field].get("type") == "string"
            return {self.field: text if of_text else value}
        if not isinstance(value, dict):
            return None
        return {"type": "call_tool"} | value if self.tools else value

    def _prompt(self) -> str:
        if self.tools:
            example = '{"tool_name": "…", "arguments": {…}}'
            shown = f"Tools: {json.dumps(self.tools)}"
        else:
            example = "…" if self.field else "{…}"
            fields = {
                name: field
                for name, field in self.schema.get("properties", {}).items()
                if name != "metadata"
            }
            shown = f"An action is {self.field or 'a JSON object'}, of {json.dumps(fields)}"
        return f"You act in an environment. {shown}. {HOW_TO_ANSWER.format(example=example)}"


def _text(observation: dict[str, Any]) -> str:
    """Returns an observation as JSON, without empty fields. If only one field is left, and the
    field is text, returns the text."""
    shown = {name: value for name, value in observation.items() if value not in (None, "", {}, [])}
    (only,) = shown.values() if len(shown) == 1 else (None,)
    return only if isinstance(only, str) else json.dumps(shown, ensure_ascii=False)
