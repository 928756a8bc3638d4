"""The openai client over /v1/responses: a tool. It puts the stream together by itself too."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "multiply",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
client = OpenAI()


def ask(messages: list) -> object:
    asked = {"model": "policy", "input": messages, "tools": [TOOL]}
    if "stream" not in sys.argv:
        return client.responses.create(**asked)
    said = {}
    with client.responses.stream(**asked) as stream:
        for event in stream:
            if event.type in (
                "response.output_text.delta",
                "response.function_call_arguments.delta",
            ):
                said[event.output_index] = said.get(event.output_index, "") + event.delta
                assert event.snapshot == said[event.output_index]
        reply = stream.get_final_response()
    for n, item in enumerate(reply.output):
        whole = item.arguments if item.type == "function_call" else item.content[0].text
        assert said[n] == whole, (said[n], whole)
    return reply


messages = [{"role": "user", "content": "What is 12 times 13?"}]
first = ask(messages)
(call,) = [item for item in first.output if item.type == "function_call"]
given = json.loads(call.arguments)
messages += [item.model_dump(exclude_none=True) for item in first.output]
product = str(given["a"] * given["b"])
messages.append({"type": "function_call_output", "call_id": call.call_id, "output": product})
last = ask(messages)
print(json.dumps({"reward": float("156" in last.output_text)}))
