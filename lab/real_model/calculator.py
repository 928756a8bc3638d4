"""The calculator agent of examples/agents: demonstrated conversations, as its model reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from examples.agents import calculator_openai
from lab.results.lines import ROOT
from r3l.rollout import agent_chat

SETTINGS = ROOT / "examples" / "agents" / "calculator.yaml"
TASKS = ROOT / "examples" / "agents" / "tasks.jsonl"
EVERY = 3
"""Every third task is demonstrated, whether held out or not."""
START = "--steps 14 --tokens-per-batch 1024".split()
"""The warm-up: each conversation is seen about once."""
RUN = "learner.steps=30 eval.every=10 eval.temperature=1".split()


def conversations() -> Iterator[str]:
    """Yields demonstrated conversations, as lines for `r3l-learner warmup --data`. Calls of tools
    and their results are text, as r3l shows them to a model whose chat template has no tools."""
    shown = _template()
    tools = [{"type": "function", "function": calculator_openai.TOOL}]
    for line in TASKS.read_text(encoding="utf-8").splitlines()[::EVERY]:
        task = json.loads(line)
        a, b = task["id"].split("x")
        call = agent_chat.tool_call("multiply", {"a": int(a), "b": int(b)}, "abcdefgh1")
        product = str(task["answer"])
        asked = [
            {"role": "system", "content": "Use the tool, then answer with the number."},
            {"role": "user", "content": task["question"]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": product},
            {"role": "assistant", "content": product},
        ]
        yield json.dumps({"messages": json.loads(shown.render(messages=asked, tools=tools))})


def _template() -> Any:
    """The text that replaces a template's missing tools, which then prints its messages."""
    text = Path(agent_chat.__file__).with_name("tools.jinja").read_text(encoding="utf-8")
    made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    made.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    made.filters["dump"] = json.dumps
    return made.from_string(text.rstrip() + "{{ messages | dump }}")
