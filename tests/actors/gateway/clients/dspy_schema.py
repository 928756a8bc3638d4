"""DSPy with its adapter for JSON, after a prediction in fields of text."""

import json
import os
import sys

import dspy

ask, shaped = dspy.Predict("question -> answer"), dspy.Predict("question -> a: int")
dspy.configure(lm=dspy.LM("openai/policy", api_base=os.environ["OPENAI_BASE_URL"]))
ask(question="hi")
dspy.configure(adapter=dspy.JSONAdapter())
if "stream" in sys.argv:
    parts = dspy.streamify(shaped, async_streaming=False)(question="json")
    *_, made = parts
else:
    made = shaped(question="json")
print(json.dumps({"reward": float(isinstance(made.a, int))}))
