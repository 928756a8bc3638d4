"""The grammar of a reply: the tool calls that a request forces, the shape that it asks for, or a
choice of both.

A reply that was sampled under a grammar is not trained on. So a reply is first sampled freely, and
is sampled again under its grammar only if the free one is not what the request asks for
(`is_answer`). Grammars are written in xgrammar's JSON format:
https://xgrammar.mlc.ai/docs/structural_tag/structural_tag_format.html
"""

import json
from collections.abc import Mapping
from typing import Any

from actors.dialects.chat_completions import AgentRequest
from actors.gateway.parsers import Reply, ReplyReader
from actors.grammars.schema_fit import fits
from r3l.errors import UserError
from r3l.rollout.agent_chat import Tool

Format = dict[str, Any]


def grammar_of(reader: ReplyReader, request: AgentRequest) -> dict[str, Any]:
    """Returns {kind: grammar} for the reply to a request, or {} if the reply is free. The kind is
    `json_schema` or `structural_tag`. If calls are possible but not forced, the grammar allows a
    call or the shape. Raises UserError if the model cannot do what the request asks."""
    forced = reader.constraint(request.tools, request.choice, parallel=request.parallel)
    shape, must_call = _shape(request), request.choice not in ("auto", "none")
    if forced or (shape is None and not must_call):
        return forced
    if must_call:  # the parser of this model leaves it to the grammar of its calls
        return {"structural_tag": _tag(_tight(_calls(reader, request)))}
    if not request.tools or request.choice == "none" or not reader.tool_parser:
        schema = request.json_schema
        return {"structural_tag": _tag(shape)} if schema is None else {"json_schema": schema}
    _check(request.json_schema)
    calls = _calls(reader, request)
    return {"structural_tag": _tag({"type": "or", "elements": [_tight(calls), _tight(shape)]})}


def is_answer(request: AgentRequest, reply: Reply) -> bool:
    """Whether a reply that was sampled freely is what the request asks for: an allowed tool call,
    or else the shape. The arguments of a forced call must fit its tool. If the request names a
    shape, a call must come without text, because clients read any text as the shape."""
    forced = request.choice not in ("auto", "none")
    shaped = request.json_schema is not None or bool(request.choices)
    if reply.broken or (reply.calls and shaped and reply.text.strip()):
        return False
    if reply.calls and forced:
        shapes = {tool["function"]["name"]: tool["function"].get("parameters") or {}
                  for tool in allowed_tools(request)}  # fmt: skip
        made = [call["function"] for call in reply.calls]
        return all(
            call["name"] in shapes and fits(call["arguments"], shapes[call["name"]])
            for call in made
        )
    if reply.calls or forced:
        return bool(reply.calls)
    if request.choices:
        return reply.text in request.choices
    return fits(reply.text, request.json_schema)


def allowed_tools(request: AgentRequest) -> tuple[Tool, ...]:
    """Returns the tools that a request allows."""
    if not isinstance(request.choice, dict):
        return request.tools
    name = request.choice["function"]["name"]
    return tuple(tool for tool in request.tools if tool["function"]["name"] == name)


def _calls(reader: ReplyReader, request: AgentRequest) -> Format:
    """Returns the format of the calls that a request allows."""
    calls = reader.format_of_calls(allowed_tools(request), parallel=request.parallel)
    if calls is None:
        raise UserError(
            f"tools with a shape, or a forced call: the tool parser {reader.tool_parser} has no "
            "grammar for its calls; to get a shape, set tool_choice none; to get calls, set auto"
        )
    return calls


def _shape(request: AgentRequest) -> Format | None:
    if request.choices:
        texts = [{"type": "const_string", "value": text} for text in request.choices]
        return {"type": "or", "elements": texts}
    if request.json_schema is not None:
        return {"type": "json_schema", "json_schema": request.json_schema}
    return None


def _check(schema: Mapping[str, Any] | None) -> None:
    """Raises UserError for a schema that xgrammar would accept but not follow."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    if schema is not None and has_xgrammar_unsupported_json_features(schema):
        raise UserError("the JSON schema of the reply has features that xgrammar does not support")


def _tight(node: Any) -> Any:
    """Returns a format whose JSON has no runs of spaces, and whose tool arguments are objects."""
    if isinstance(node, list):
        return [_tight(each) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") != "json_schema":
        return {name: _tight(value) for name, value in node.items()}
    if node.get("style", "json") != "json":
        return node
    schema = {"type": "object"} if node["json_schema"] is True else node["json_schema"]
    return node | {"json_schema": schema, "max_whitespace_cnt": 1}


def _tag(format_: Format | None) -> str:
    return json.dumps({"type": "structural_tag", "format": format_})
