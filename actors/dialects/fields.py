"""The fields of a request: what the gateway does with each of them, in its three dialects.

    honoured     the reply is as the field asks
    r3l's own    how the policy samples: a value is taken and not followed
    ignored      it changes neither the text nor the form of a reply
    refused      it would, and the gateway cannot do it: 400 with the field's name

A field of the last kind is accepted with a value that asks for nothing, such as `logprobs: false`.
The log names each field that is not followed, once. A field that no row lists is not followed
either, and is counted.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from actors.dialects.chat_completions import bad, unsupported

log = logging.getLogger(__name__)

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
"""The path of each dialect."""
RENDERED = ("messages", "input", "instructions", "system", "tools")
"""Fields that become text for the policy."""
ALL = "chat responses messages"
NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
MOST_NAMED = 200
"""The most fields that one actor names in its log."""


class Fate(Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    OWN = "r3l's own"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    """A field of some dialects; `text.format` is a field of the object `text`.

    `kind`: the JSON types that the gateway takes. `neutral`: values that ask for nothing. `idle`:
    whether another value asks for nothing. `instead`: what the user should do if the field is
    refused.
    """

    name: str
    fate: Fate
    where: tuple[str, ...]
    kind: tuple[type, ...] = ()
    neutral: tuple[Any, ...] = NOTHING
    idle: Callable[[Any], bool] | None = None
    instead: str = "leave it out"

    def asks(self, value: Any) -> bool:
        """Returns whether a value asks for anything."""
        if self.idle is not None and self.idle(value):
            return False
        return not any(type(value) is type(none) and value == none for none in self.neutral)


def _row(fate: Fate, where: str, names: str, **more: Any) -> list[Field]:
    return [Field(name, fate, tuple(where.split()), **more) for name in names.split()]


def _refused(where: str, names: str, instead: str, *also: Any) -> list[Field]:
    return _row(Fate.REFUSED, where, names, instead=instead, neutral=(*NOTHING, *also))


def _keeps_all(context: Any) -> bool:
    """Whether a `context_management` has no edit, or only edits that keep all."""
    edits = context.get("edits") if isinstance(context, dict) else context
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and edit.get("keep") == "all" for edit in edits
    )


_ONLY_POLICY = "this server has one model, the policy"
_LOGPROBS = "leave it out; r3l keeps the log-probabilities itself"
_HISTORY = "leave it out and send the whole conversation"
_OWN_TOOLS = "give the agent's own tools as functions"
_TEMPLATE = "leave it out; the model folder's chat template is used"
_SHAPE = "use structured_outputs with json or choice, or a response format with a schema"
_TOKENS = "leave it out; a reply's tokens are sampled and kept as the engine draws them"

FIELDS: tuple[Field, ...] = (
    # What is asked, and of whom.
    *_row(Fate.HONOURED, ALL, "model", kind=(str,)),
    *_row(Fate.HONOURED, "chat messages", "messages", kind=(list,), neutral=(None,)),
    *_row(Fate.HONOURED, "responses", "input", kind=(str, list), neutral=(None,)),
    *_row(Fate.HONOURED, "responses", "instructions", kind=(str,)),
    *_row(Fate.HONOURED, "messages", "system", kind=(str, list)),
    *_row(Fate.HONOURED, ALL, "tools", kind=(list,)),
    *_row(Fate.HONOURED, ALL, "tool_choice", kind=(str, dict), neutral=(*NOTHING, "auto")),
    *_row(Fate.HONOURED, "messages", "tool_choice.disable_parallel_tool_use", kind=(bool,)),
    *_row(Fate.HONOURED, "messages", "tool_choice.type tool_choice.name", kind=(str,)),
    *_row(Fate.HONOURED, "chat responses", "parallel_tool_calls", kind=(bool,),
          neutral=(None, True)),
    # How long the reply is, and its form.
    *_row(Fate.HONOURED, "chat messages", "max_tokens", neutral=(None,)),
    *_row(Fate.HONOURED, "chat", "max_completion_tokens", neutral=(None,)),
    *_row(Fate.HONOURED, "responses", "max_output_tokens", neutral=(None,)),
    *_row(Fate.HONOURED, "chat responses", "stop", kind=(str, list)),
    *_row(Fate.HONOURED, "messages", "stop_sequences", kind=(list,)),
    *_row(Fate.HONOURED, ALL, "stream", kind=(bool,)),
    *_row(Fate.HONOURED, "chat", "stream_options", kind=(dict,)),
    *_row(Fate.HONOURED, "chat", "stream_options.include_usage", kind=(bool,)),
    *_row(Fate.HONOURED, "chat", "n", kind=(int,), neutral=(None, 1)),
    *_row(Fate.HONOURED, "chat", "response_format", kind=(dict,)),
    *_row(Fate.HONOURED, "responses", "text text.format", kind=(dict,)),
    *_row(Fate.HONOURED, "messages", "output_config output_config.format output_format",
          kind=(dict,)),
    *_row(Fate.HONOURED, ALL, "structured_outputs", kind=(dict,)),
    *_row(Fate.HONOURED, ALL, "structured_outputs.json", kind=(dict, str)),
    *_row(Fate.HONOURED, ALL, "structured_outputs.choice guided_choice", kind=(list,),
          neutral=(None,)),
    *_row(Fate.HONOURED, ALL, "structured_outputs.json_object guided_json_object", kind=(bool,)),
    *_row(Fate.HONOURED, ALL, "guided_json", kind=(dict, str)),
    *_refused(ALL, "structured_outputs.regex structured_outputs.grammar "
              "structured_outputs.structural_tag structured_outputs.whitespace_pattern "
              "structured_outputs.disable_additional_properties guided_regex guided_grammar "
              "guided_whitespace_pattern regex ebnf grammar json_schema", _SHAPE),
    *_row(Fate.IGNORED, ALL,
          "structured_outputs.disable_any_whitespace guided_decoding_backend"),
    # How the template shows the conversation, and whether the policy reasons.
    *_row(Fate.HONOURED, ALL, "chat_template_kwargs", kind=(dict,)),
    *_row(Fate.HONOURED, ALL, "enable_thinking", kind=(bool,), neutral=(None,)),
    *_row(Fate.HONOURED, "chat messages", "thinking", kind=(dict,)),
    *_row(Fate.HONOURED, "chat messages", "thinking.type", kind=(str,)),
    *_row(Fate.HONOURED, "chat", "reasoning_effort", kind=(str,)),
    *_row(Fate.HONOURED, "responses", "reasoning", kind=(dict,)),
    *_row(Fate.HONOURED, "responses", "reasoning.effort", kind=(str,)),
    *_row(Fate.HONOURED, "messages", "output_config.effort", kind=(str,)),
    *_row(Fate.OWN, "chat messages", "thinking.budget_tokens thinking.display "
          "thinking.clear_thinking"),
    *_row(Fate.OWN, "responses", "reasoning.summary reasoning.generate_summary reasoning.context "
          "reasoning.mode text.verbosity"),
    *_row(Fate.OWN, "messages", "output_config.task_budget"),
    *_row(Fate.OWN, "chat", "verbosity"),
    *_refused(ALL, "thinking_token_budget", "leave it out; lower the reply's budget of tokens"),
    *_refused("chat responses", "include_reasoning", "leave it out; a reply's reasoning is apart "
              "from its text", True),
    *_refused("chat", "add_generation_prompt", _TEMPLATE, True),
    *_refused("chat", "chat_template documents add_special_tokens", _TEMPLATE),
    *_refused("chat", "continue_final_message echo", "leave it out; end with a user's message"),
    # How the policy samples.
    *_row(Fate.OWN, ALL, "temperature top_p top_k min_p seed random_seed frequency_penalty "
          "presence_penalty repetition_penalty length_penalty"),
    *_refused(ALL, "logit_bias allowed_token_ids bad_words stop_token_ids ignore_eos min_tokens "
              "use_beam_search repetition_detection watermarking suffix vllm_xargs", _TOKENS),
    *_refused("chat", "best_of", "ask again for another reply", 1),
    *_refused("chat responses", "include_stop_str_in_output", "leave it out; texts of stop are cut "
              "off"),
    *_refused("chat responses", "skip_special_tokens", _TOKENS, True),
    *_refused("chat", "truncate_prompt_tokens", "shorten the conversation yourself"),
    *_refused("responses", "truncation", "shorten the conversation yourself", "disabled"),
    # More than text in the answer.
    *_refused("chat", "logprobs logprob_token_ids prompt_logprobs", _LOGPROBS),
    *_refused("chat responses", "top_logprobs", _LOGPROBS),
    *_refused("chat", "return_token_ids return_tokens_as_token_ids return_token_offsets "
              "return_prompt_text routed_experts_prompt_start", _LOGPROBS),
    *_refused("responses", "enable_response_messages", _LOGPROBS),
    *_refused("chat", "modalities", "this policy writes text", ["text"]),
    *_refused("chat", "audio", "this policy writes text"),
    *_row(Fate.REFUSED, "chat", "web_search_options", neutral=(None,), instead=_OWN_TOOLS),
    *_refused("chat", "functions", "use tools and tool_choice"),
    *_refused("chat", "function_call", "use tools and tool_choice", "none", "auto"),
    *_refused("chat", "reasoning", "use reasoning_effort, which may be none"),
    *_refused("messages", "reasoning", "use thinking or output_config.effort"),
    *_refused("messages", "mcp_servers container", _OWN_TOOLS),
    *_refused("chat responses", "moderation", _ONLY_POLICY),
    *_refused("messages", "fallbacks", _ONLY_POLICY),
    # A state between requests.
    *_refused("responses", "previous_response_id conversation prompt previous_input_messages",
              _HISTORY),
    *_refused("responses", "background background_options", "leave it out and wait for the answer"),
    *_refused("messages", "thread", _HISTORY),
    *_refused("messages", "compaction", "ask for a summary in a message"),
    *_row(Fate.REFUSED, "responses messages", "context_management", idle=_keeps_all,
          instead="leave it out; the policy reads the whole conversation"),
    # What changes neither text nor form.
    *_row(Fate.IGNORED, ALL, "metadata service_tier priority request_id session_id cache_salt "
          "kv_transfer_params ec_transfer_params mm_payload return_mm_kwargs"),
    *_row(Fate.IGNORED, "chat responses", "store user safety_identifier prompt_cache_key "
          "prompt_cache_retention prompt_cache_options media_io_kwargs mm_processor_kwargs "
          "stream_options.include_obfuscation stream_options.continuous_usage_stats"),
    *_row(Fate.IGNORED, "chat", "prediction truncation_side spaces_between_special_tokens "
          "stream_interval"),
    *_row(Fate.IGNORED, "responses", "stream_options include max_tool_calls access_programs image"),
    *_row(Fate.IGNORED, "messages", "cache_control inference_geo speed diagnostics billing_policy "
          "fallback_credit_token user_profile_id workspace_id betas"),
)  # fmt: skip
"""All fields that OpenAI's and Anthropic's clients and vLLM's servers know, and some that others
know."""

_BY_DIALECT = {
    dialect: {field.name: field for field in FIELDS if dialect in field.where} for dialect in PATHS
}
_ELSEWHERE = {
    field.name: field
    for field in FIELDS
    if field.fate in (Fate.HONOURED, Fate.REFUSED) and "." not in field.name
}
_OBJECTS = {
    dialect: {name.partition(".")[0] for name in own if "." in name}
    for dialect, own in _BY_DIALECT.items()
}
OBJECTS = frozenset().union(*_OBJECTS.values())
"""The fields of some dialect that are objects whose fields are in the table."""


def check(dialect: str, body: Mapping[str, Any]) -> None:
    """Raises Refused for a field that cannot be honoured, that has the wrong type, or that is
    honoured only in another dialect."""
    known = _BY_DIALECT[dialect]
    for name, value in _flat(dialect, body):
        field = known.get(name)
        if field is None and (other := _ELSEWHERE.get(name)) and other.asks(value):
            paths = " and ".join(PATHS[where] for where in other.where)
            why = f"a field of {paths}, not of {PATHS[dialect]}; leave it out here"
            raise unsupported(name, why)
        if field is None or not field.asks(value):
            continue
        if field.fate is Fate.REFUSED:
            raise unsupported(name, f"not offered by this gateway; {field.instead}")
        if field.kind and type(value) not in field.kind:
            kinds = " or ".join(_JSON[kind] for kind in field.kind)
            raise bad(f"{name} is {value!r:.60}; it must be {kinds}")


_JSON = {str: "a text", list: "a list", dict: "an object", bool: "true or false",
         int: "an integer"}  # fmt: skip


def overlooked(dialect: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields of a request that are not followed, and why. The reason is "" for unknown
    fields."""
    found = {}
    for name, value in _flat(dialect, body):
        field = _BY_DIALECT[dialect].get(name)
        if field is None and value is not None:
            found[name] = ""
        elif field is not None and field.fate is Fate.OWN and value is not None:
            found[name] = "this is r3l's own"
        elif field is not None and field.fate is Fate.IGNORED and value is not None:
            found[name] = "it changes no reply"
    return found


class FieldLog:
    """Logs each field that is not followed, once for each actor."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def note(self, dialect: str, body: Mapping[str, Any]) -> int:
        """Logs the fields of a request that are not followed. Returns how many are unknown."""
        found = overlooked(dialect, body)
        for name, why in found.items():
            self.name(dialect, name, why or "it is unknown")
        return list(found.values()).count("")

    def name(self, dialect: str, name: str, why: str) -> None:
        """Logs a field that is not followed, unless it was logged before."""
        key = f"{dialect} {name:.80}"
        if key not in self._named and len(self._named) < MOST_NAMED:
            self._named.add(key)
            log.warning("requests to %s have the field %.80r, which is not followed: %s",
                        PATHS[dialect], name, why)  # fmt: skip


def _flat(dialect: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a request. If the table lists an object's own fields, yields them as
    well."""
    for name, value in body.items():
        yield name, value
        if name in _OBJECTS[dialect] and isinstance(value, dict):
            for own, inner in value.items():
                yield f"{name}.{own}", inner


def markdown() -> str:
    """Returns the table of docs/agents/gateway.md: a row for each fate and each set of dialects."""
    rows: dict[tuple[str, str], list[str]] = {}
    for fate in Fate:
        for field in FIELDS:
            if field.fate is fate:
                where = "all" if len(field.where) == len(PATHS) else ", ".join(field.where)
                rows.setdefault((fate.value, where), []).append(f"`{field.name}`")
    lines = [f"| {fate} | {where} | {', '.join(names)} |" for (fate, where), names in rows.items()]
    return "\n".join(["| what becomes of it | dialects | fields |", "|---|---|---|", *lines])
