"""The grammar of a reply: tool calls that a request forces, the shape it asks for, or either.

A reply under a grammar is read and not trained. xgrammar's formats are described by JSON:
https://xgrammar.mlc.ai/docs/structural_tag/structural_tag_format.html
"""

import json
from collections.abc import Mapping
from typing import Any

from actors.dialects.chat_completions import AgentRequest
from actors.gateway.parsers import ReplyReader
from r3l.errors import UserError

Format = dict[str, Any]


def grammar_of(reader: ReplyReader, request: AgentRequest) -> dict[str, Any]:
    """Returns {kind: grammar} for the reply to a request; {} if the reply is free. The kind is
    `json_schema` or `structural_tag`. If calls are possible but not forced, the reply is a call or
    has the shape. Raises UserError if the model cannot do what is asked."""
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


def _calls(reader: ReplyReader, request: AgentRequest) -> Format:
    """Returns the format of the calls that a request allows."""
    tools = request.tools
    if isinstance(request.choice, dict):
        name = request.choice["function"]["name"]
        tools = tuple(tool for tool in tools if tool["function"]["name"] == name)
    calls = reader.format_of_calls(tools, parallel=request.parallel)
    if calls is None:
        raise UserError(
            f"tools and a shape, or a forced call: the tool parser {reader.tool_parser} has no "
            "grammar of its calls; ask for the shape with tool_choice none, and for calls with auto"
        )
    return calls


def parts_of(tag: str) -> tuple[Format | None, Format | None]:
    """Returns the formats of (tool calls, the shape) that a structural tag allows; None for a part
    that it does not allow."""
    whole = json.loads(tag)["format"]
    if _is_shape(whole):
        return None, whole
    either: list[Format] = whole.get("elements", []) if whole["type"] == "or" else []
    if len(either) == 2 and _is_shape(either[1]):
        return either[0], either[1]
    return whole, None


def _is_shape(format_: Format) -> bool:
    texts = [element["type"] == "const_string" for element in format_.get("elements", ())]
    return format_["type"] == "json_schema" or (format_["type"] == "or" and all(texts))


def _shape(request: AgentRequest) -> Format | None:
    if request.choices:
        texts = [{"type": "const_string", "value": text} for text in request.choices]
        return {"type": "or", "elements": texts}
    if request.json_schema is not None:
        return {"type": "json_schema", "json_schema": request.json_schema}
    return None


def _check(schema: Mapping[str, Any] | None) -> None:
    """Raises UserError for a schema that xgrammar would take and not follow."""
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
