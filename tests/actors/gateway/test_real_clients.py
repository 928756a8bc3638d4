"""Clients that other people wrote, unchanged, in interpreters of their own.

`make test-agents` makes these interpreters and runs these tests; without them they are skipped.
CrewAI and Strands have the second one, because they need older versions of openai and mcp.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.agents.agent_attempt import agents_served
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.records import GroupPlan, Trajectory
from r3l.rollout.chat import ChatFormat
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import load
from r3l.views.tape import read_tape
from tests.r3l.fakes import END, CharTokenizer, ScriptedPolicy
from tests.r3l.rollout.fakes import exploration
from tests.r3l.rollout.test_agent_chat import QWEN

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("R3L_AGENTS_PYTHON", ROOT / "build" / "agents" / "bin" / "python"))
OLDER = Path(os.environ.get("R3L_AGENTS_2_PYTHON", ROOT / "build" / "agents-2" / "bin" / "python"))
CLIENTS = Path(__file__).with_name("clients")
EXAMPLES = ROOT / "examples" / "agents"
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 12, "b": 13}}\n</tool_call>'

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make test-agents runs these")


class Vocabulary(CharTokenizer):
    """Characters, with the vocabulary that vLLM's parsers ask for."""

    def get_vocab(self) -> dict[str, int]:
        return {}


class Calculator(ScriptedPolicy):
    """Calls the tool, then says what it was told. Remembers what it read and sampled."""

    def __init__(self) -> None:
        super().__init__(lambda text: "")
        self.chat = ChatFormat(Vocabulary(QWEN))
        self.sampled: dict[tuple[int, ...], list[int]] = {}

    async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
        prompt = self.chat.tokenizer.decode(token_ids)
        if "slow" in prompt:
            await asyncio.sleep(1.0)
        number = len(self.sampled)
        ids = [*self.chat.tokenizer.encode(answer(prompt, params, number)), END]
        self.sampled[tuple(ids)] = list(token_ids)
        return Sample(tuple(ids), (-0.5,) * len(ids), 0, 0, "stop")


def answer(prompt: str, params: SampleParams, number: int) -> str:
    """What the policy says; the number of the call makes every answer different."""
    if "[[ ## completed ## ]]" in prompt and params.json_schema is None:
        return of_fields(prompt, number)
    if '"name": "Shape"' in prompt and "<tool_response>" in prompt:  # a shape as a tool
        return f'<tool_call>\n{{"name": "Shape", "arguments": {{"a": {number}}}}}\n</tool_call>'
    shaped = params.structural_tag is not None and "<tool_response>" in prompt
    if params.json_schema is not None or shaped:  # a tag: a call or the shape
        return json.dumps({"a": number})
    if "<tool_response>" in prompt or '"multiply"' not in prompt + "x":
        if "transfer_to_poet" in prompt and "You are a poet" not in prompt:
            return '<tool_call>\n{"name": "transfer_to_poet", "arguments": {}}\n</tool_call>'
        return f"({number}) It is 156."
    if params.structural_tag is not None:  # a call and nothing else, of its own length
        return CALL.replace("}}", "}" + " " * number + "}")
    return f"I multiply ({number}).\n" + "\n".join([CALL] * (3 if "three of them" in prompt else 1))


def of_fields(prompt: str, number: int) -> str:
    """What the policy says to DSPy, which asks for fields of text."""
    fields = {"reasoning": f"({number}) I multiplied.", "answer": "156"}
    if "[[ ## next_tool_name ## ]]" in prompt:
        tool = "finish" if "observation_0" in prompt else "multiply"
        given = {} if tool == "finish" else {"a": 12, "b": 13}
        thought = {"next_thought": f"({number}) I multiply.", "next_tool_name": tool}
        fields = thought | {"next_tool_args": json.dumps(given)}
    lines = [f"[[ ## {name} ## ]]\n{text}\n" for name, text in fields.items()]
    return "\n".join([*lines, "[[ ## completed ## ]]"])


def run_client(
    command: str, tmp_path: Path, python: Path = PYTHON
) -> tuple[Trajectory, Calculator, ActorMetrics]:
    tasks = tmp_path / "tasks.jsonl"
    task = {"id": 1, "question": "What is 12 times 13?", "answer": 156, "seed": 3}
    tasks.write_text(json.dumps(task))
    return played("agent", {"command": command, "tasks": str(tasks), "python": str(python)})


def played(name: str, options: dict[str, Any]) -> tuple[Trajectory, Calculator, ActorMetrics]:
    """Plays one attempt of an environment of agents with a policy that can calculate."""
    config = load(
        None,
        [
            f"env={name}",
            f"env.options={json.dumps(options)}",
            "env.memory_mib=4096",
            "algorithm=grpo",
            "actor.max_response_tokens=1000",
            "actor.agent.timeout_s=400",  # CrewAI loads for minutes on a busy machine
            "actor.agent.train=all",
        ],
    )
    policy, metrics, errors = Calculator(), ActorMetrics(), []

    async def explore() -> Any:
        (task,) = tasks_of_all(config.env, "train", 1)
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy, metrics) as make_env,
        ):
            x = exploration(
                policy, config, task, make_env, plan=GroupPlan(1), on_failure=errors.append
            )
            return await explore_group(config.algorithm.explore, x)

    (result,) = asyncio.run(explore())
    assert result.trajectory is not None, errors
    return result.trajectory, policy, metrics


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(
    ("script", "conversations", "rebased"),
    [
        (CLIENTS / "parallel.py", None, None),
        (CLIENTS / "schema.py", 1, 1),
        (CLIENTS / "impatient.py", 1, 0),
        (CLIENTS / "agents_tool.py", 1, 0),
        (CLIENTS / "handoff.py", 2, 1),
        (CLIENTS / "subgraph.py", 2, 1),
        (CLIENTS / "anthropic_tool.py", 1, 0),
        (CLIENTS / "anthropic_schema.py", 1, 1),
        (CLIENTS / "impatient_anthropic.py", 1, 0),
        (CLIENTS / "smol.py", None, None),
        (CLIENTS / "pydantic_agent.py", 1, 0),
        (CLIENTS / "responses_tool.py", 1, 0),
        (CLIENTS / "pydantic_responses.py", 1, 0),
        (CLIENTS / "langgraph_responses.py", 1, 0),
        (CLIENTS / "majority.py", 5, 4),
        (CLIENTS / "shape_openai.py", None, 1),
        (CLIENTS / "shape_agents.py", None, 1),
        (CLIENTS / "shape_pydantic.py", None, 2),
        (CLIENTS / "shape_anthropic.py", None, 1),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_a_client_is_trained_on_exactly_what_the_engine_read(
    script: Path, conversations: int | None, rebased: int | None, mode: str, tmp_path: Path
) -> None:
    made, policy, metrics = run_client(f"python {script} {mode}", tmp_path)
    check_tokens(made, policy, metrics)
    assert conversations in (None, len(made.conversations()))
    assert rebased in (None, metrics.agent["rebased"])


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(
    ("client", "python"),
    [
        ("litellm_tool", PYTHON),
        ("dspy_tool", PYTHON),
        ("dspy_schema", PYTHON),
        ("autogen_tool", PYTHON),
        ("autogen_schema", PYTHON),
        ("agno_tool", PYTHON),
        ("agno_schema", PYTHON),
        ("adk_tool", PYTHON),
        ("adk_schema", PYTHON),
        ("crewai_tool", OLDER),
        ("crewai_schema", OLDER),
        ("strands_tool", OLDER),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_framework_is_trained_on_exactly_what_the_engine_read(
    client: str, python: Path, mode: str, tmp_path: Path
) -> None:
    if not python.exists():
        pytest.skip("make test-agents runs these")
    made, policy, metrics = run_client(f"python {CLIENTS / client}.py {mode}", tmp_path, python)
    check_tokens(made, policy, metrics)


@pytest.mark.parametrize("example", ["openai", "openai_agents", "langgraph"])
def test_an_example_is_trained_on_exactly_what_the_engine_read(
    example: str, tmp_path: Path
) -> None:
    made, policy, metrics = run_client(f"python {EXAMPLES}/calculator_{example}.py", tmp_path)
    check_tokens(made, policy, metrics)
    assert len(made.conversations()) == 1 and metrics.agent["rebased"] == 0


def check_tokens(made: Trajectory, policy: Calculator, metrics: ActorMetrics) -> None:
    """Each reply is trained once, after the tokens that the policy read before it."""
    assert made.reward == 1.0, read_tape(made.extra.tape)
    trained = []
    for sequence in made.conversations():
        ids = sequence.token_ids.tolist()
        for step, (start, end) in enumerate(sequence.step_spans.tolist()):
            assert policy.sampled[tuple(ids[start:end])] == ids[:start]
            trained += [tuple(ids[start:end])] if step >= sequence.extra.start else []
    assert len(trained) == len(set(trained)) > 0
    twice = metrics.agent["shapes_missed"]  # for nothing else
    assert metrics.agent["calls"] + twice == len(policy.sampled)


def test_the_tools_of_an_mcp_server_are_called(tmp_path: Path) -> None:
    made, policy, _ = run_client(f"{EXAMPLES}/mcp_agent.py:play", tmp_path)
    assert made.reward == 1.0 and made.num_steps == len(policy.sampled) == 2
    assert made.observations[1] == "156"


def test_a_graph_plays_the_workshop_as_a_function(tmp_path: Path) -> None:
    made, policy, _ = run_client(f"{EXAMPLES}/workshop_langgraph.py:play", tmp_path)
    assert made.reward == 0.0 and made.num_steps == len(policy.sampled) >= 5
    assert not made.extra.segments and "station 0 has" in made.observations[0]
