"""The workshop, played by a DSPy program: pip install dspy msgspec

DSPy's own adapters ask for fields of text, which take a larger model than the built-in policy. This
one asks in plain words, as a chat.
"""

import os

import dspy
from workshop_row import Row


class PlainWords(dspy.Adapter):
    """The field `action` is the whole reply."""

    def format(self, signature, demos, inputs):
        messages = [{"role": "system", "content": signature.instructions}]
        for earlier in inputs["history"].messages:
            messages.append({"role": "user", "content": earlier["observation"]})
            messages.append({"role": "assistant", "content": earlier["action"]})
        return [*messages, {"role": "user", "content": inputs["observation"]}]

    def parse(self, signature, completion):
        return {"action": completion}


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    row, seen = Row(task), []
    lm = dspy.LM("openai/policy", api_base=os.environ["OPENAI_BASE_URL"])
    fields = "observation, history: dspy.History -> action"
    choose = dspy.Predict(dspy.Signature(fields, row.system))
    with dspy.context(lm=lm, adapter=PlainWords()):
        while row.goes_on:
            observation = row.observation
            made = choose(observation=observation, history=dspy.History(messages=[*seen]))
            seen.append({"observation": observation, "action": made.action})
            row.act(made.action)
    return row.result()
