"""Reads replies in this process, with vLLM's own tool and reasoning parsers."""

import json
import logging
import re
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from r3l.errors import UserError
from r3l.rollout.agent_chat import (
    PROBE_CALLS,
    PROBE_REPLY,
    PROBE_TOOLS,
    AgentChat,
    AgentMessage,
    Tool,
    add_tools,
    plain_arguments,
    tool_call,
)
from r3l.rollout.chat import ChatFormat
from r3l.run.settings.actor import AgentConfig

log = logging.getLogger(__name__)

CANDIDATES = (
    "hermes qwen3_xml llama3_json mistral kimi_k2 deepseek_v3 deepseek_v31 glm45 glm47 granite4 "
    "phi4_mini_json olmo3 minimax_m2 seed_oss gemma4 pythonic"
).split()
"""The tool parsers that `auto` tries, in this order."""


@dataclass(frozen=True)
class Reply:
    """A reply as an agent reads it. `calls`: the `tool_calls` of the message. `broken`: a part of
    the reply could not be parsed and stays in `text`. `stop`: the stop text that ended it, which
    is not part of it."""

    text: str
    reasoning: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    broken: bool = False
    stop: str = ""

    def message(self) -> AgentMessage:
        content = None if self.calls and not self.text else self.text
        made: AgentMessage = {"role": "assistant", "content": content}
        made |= {"reasoning_content": self.reasoning} if self.reasoning else {}
        return made | ({"tool_calls": list(self.calls)} if self.calls else {})


class ReplyReader:
    """Reads replies. A parser is `auto`, `none` or a name that vLLM knows. For a template with
    tools, `auto` takes the first tool parser that reads the template's own tool calls. Raises
    UserError if `auto` finds no parser, or if a named parser cannot be used."""

    def __init__(self, chat: AgentChat, tool_parser: str, reasoning_parser: str) -> None:
        self.chat = chat
        self.tokenizer = chat.chat.tokenizer
        self.tool_parser = "" if tool_parser in ("auto", "none") else tool_parser
        self.reasoning_parser = self._reasoning(reasoning_parser)
        if self.tool_parser and not chat.takes_tools:
            raise UserError(
                f"actor.agent.tool_parser={tool_parser}: the chat template of "
                f"{self.tokenizer.name_or_path!r} does not support tools; choose a model that "
                "calls tools, or set the parser to none"
            )
        if tool_parser == "auto" and chat.takes_tools:
            self.tool_parser = self._found()
        self._kind = self._parser(self.tool_parser, self.reasoning_parser)

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        choice: Any,
        stop: Sequence[str] = (),
        arguments: str = "{}",
        *,
        shaped: bool = False,
    ) -> Reply:
        """Reads sampled tokens. Keeps a reply with a malformed tool call as plain text.

        Cuts the reply before the first stop text that it completes. The text before a stop text
        keeps its white space; a reply without one loses the white space around its text.
        `arguments`: the arguments of the chat template, as JSON; they tell some parsers whether the
        model reasons. `shaped`: whether a grammar shaped the reply, which then has no reasoning.
        """
        ids = list(token_ids)
        if ids and ids[-1] == self.chat.chat.end_id:
            ids.pop()
        kind = self._of_calls if shaped else self._kind
        plain = kind is None or not (tools or (self.reasoning_parser and not shaped))
        text, end = before_stop(self._decoded(ids, skip_special_tokens=plain), stop)
        tidy = str if end else str.strip
        text = tidy(text)
        if plain:
            return Reply(text, stop=end)
        request = _request(tools, choice)
        ids = [*self.chat.chat.encode(text)] if end else ids
        try:
            more = {"chat_template_kwargs": json.loads(arguments)} if arguments != "{}" else {}
            parser = kind(self.tokenizer, request.tools, **more)
            reasoning, content, calls = parser.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=ids
            )
        except Exception as error:  # a parser may raise anything
            log.debug("a reply could not be parsed: %r", error)
            return Reply(text, broken=True, stop=end)
        if not all(_readable(call) for call in calls or ()):
            return Reply(text, broken=True, stop=end)
        # Mistral's template takes ids of 9 characters only.
        made = tuple(
            tool_call(call.name, call.arguments, uuid.uuid4().hex[:9]) for call in calls or ()
        )
        content = tidy(content or "")
        broken = bool(tools and not made and self._mark) and self._mark in content
        return Reply(content, (reasoning or "").strip(), made, broken, end)

    def _decoded(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decodes the tokens of a reply as the engine does, after other text: at the beginning of a
        text, a tokenizer may leave out a space."""
        before, both = (
            str(self.tokenizer.decode(each, skip_special_tokens=skip_special_tokens))
            for each in (self._earlier, [*self._earlier, *ids])
        )
        return both.removeprefix(before)

    @cached_property
    def _earlier(self) -> tuple[int, ...]:
        """The tokens of any text."""
        return self.chat.chat.encode("a")

    def constraint(
        self, tools: Sequence[Tool], choice: Any, *, parallel: bool = True
    ) -> dict[str, Any]:
        """Returns {kind: grammar}, with the grammar that vLLM's own server uses to force a tool
        call. The kind is `json_schema` or `structural_tag`. Returns {} if `choice` forces no call.
        `parallel`: whether a reply may have several calls. Raises UserError if the model cannot
        handle what is asked."""
        forced = choice not in ("auto", "none")
        if not tools:
            if forced:
                raise UserError(f"tool_choice {choice!r:.80}: the request has no tools")
            return {}
        if not self.chat.takes_tools:
            raise UserError("tools: the chat template of this policy does not support tools")
        request = _request(tools, choice, parallel)
        if forced and not self.tool_parser:
            raise UserError(f"tool_choice {choice!r}: this model has no tool parser")
        if choice == "auto" and not parallel and not self._cuts:
            raise UserError(
                "parallel_tool_calls: a reply of this model cannot be cut after its first tool "
                "call; leave it out, or force a call with tool_choice"
            )
        if self._kind is None or not forced:
            return {}
        wanted = self._kind(self.tokenizer, request.tools).adjust_request(request)
        outputs = wanted.structured_outputs
        if outputs is None:
            return {}
        tag = outputs.structural_tag
        return {"structural_tag": tag} if tag else {"json_schema": outputs.json}

    def format_of_calls(self, tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any] | None:
        """Returns xgrammar's description of tool calls as this model writes them: the tool parser's
        own description of one or more calls, or else that of one call as the template writes it.
        Returns None if there is neither."""
        from vllm.tool_parsers.structural_tag_registry import limit_to_single_tool_call

        request = _request(tools, "required", parallel)
        parser = self._kind(self.tokenizer, request.tools).tool_parser
        tag = parser.get_structural_tag(request, reasoning=False)
        if tag is None:
            return self._written_format(tools)
        if not parallel:
            limit_to_single_tool_call(tag)
        return dict(tag.format.model_dump())

    def _written_format(self, tools: Sequence[Tool]) -> dict[str, Any] | None:
        """Describes one call in the template's form, with JSON arguments. Returns None if the tool
        parser cannot read this form."""
        tags = []
        for tool in tools:
            name, mark = tool["function"]["name"], {"R3L": 1}
            made = PROBE_REPLY | {"tool_calls": [tool_call(name, mark, "abcdefgh1")]}
            begin, found, end = self.written(made, tools).strip().partition(json.dumps(mark))
            read = self.read(self.chat.chat.encode(f"{begin}{{}}{end}"), tools, "auto").calls
            if not found or [call["function"]["name"] for call in read] != [name]:
                return None
            content = {"type": "json_schema", "json_schema": True}
            tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
        return {"type": "or", "elements": tags}

    def first_call(
        self, token_ids: Sequence[int], tools: Sequence[Tool], arguments: str = "{}"
    ) -> int | None:
        """Returns how many tokens a reply has up to the end of its first tool call. Returns None if
        the part up to there is not a whole call."""
        ids, end = list(token_ids), self._end_of_call

        def length(n: int) -> int:
            return len(self.tokenizer.decode(ids[:n], skip_special_tokens=False))

        text = str(self.tokenizer.decode(ids, skip_special_tokens=False))
        for found in re.finditer(re.escape(end), text) if end else ():
            n = bisect_left(range(len(ids)), found.end(), key=length)
            reply = self.read(ids[:n], tools, "auto", (), arguments)
            if len(reply.calls) == 1 and not reply.broken:
                return n
        return None

    @cached_property
    def _of_calls(self) -> Any:
        """The parser class for replies without reasoning."""
        return self._parser(self.tool_parser, "")

    @cached_property
    def _end_of_call(self) -> str:
        """The tag with which the template ends a tool call, or ""."""
        found = re.search(r"(<[^<>\s]+>|\[[^\[\]\s]+\])$", self.written().strip())
        return found[0] if found else ""

    @cached_property
    def _cuts(self) -> bool:
        """Whether a reply can be cut after the first of two tool calls."""
        try:
            two = self.chat.chat.encode(self.written(PROBE_CALLS))
            return not self.tool_parser or self.first_call(two, PROBE_TOOLS) is not None
        except UserError:  # a template for one call at a time
            return False

    def _found(self) -> str:
        written = self.chat.chat.encode(self.written())
        for name in CANDIDATES:
            with suppress(UserError):  # the parser does not fit the tokenizer
                self._kind = self._parser(name, "")
                made = [call["function"] for call in self.read(written, PROBE_TOOLS, "auto").calls]
                found = [(call["name"], json.loads(call["arguments"])) for call in made]
                if found == [("add_one", {"a": 1})]:
                    return name
        raise UserError(
            "actor.agent.tool_parser=auto: the chat template of "
            f"{self.tokenizer.name_or_path!r} writes tool calls that no known parser reads; name "
            "one of vLLM's tool parsers, or set the parser to none"
        )

    def written(
        self, reply: AgentMessage = PROBE_REPLY, tools: Sequence[Tool] = PROBE_TOOLS
    ) -> str:
        """Returns the text that the template writes for a reply with a tool call."""
        asked = [{"role": "user", "content": "u"}]
        format_ = self.chat.chat
        before = format_.render(asked, tools, prompt=True)
        whole = format_.render([*asked, reply], tools)
        return whole.removeprefix(before).partition(format_.end)[0]

    @cached_property
    def _mark(self) -> str:
        """The first characters of a tool call in the template's format."""
        return self.written().strip().partition("add_one")[0][:12].split("\n")[0]

    def _reasoning(self, name: str) -> str:
        if name != "auto":
            return "" if name == "none" else name
        thinks = "</think>" in str(self.tokenizer.chat_template)
        known = {"<think>", "</think>"} <= set(self.tokenizer.get_vocab()) if thinks else False
        return "qwen3" if known else ""

    def _parser(self, tool: str, reasoning: str) -> Any:
        """Returns vLLM's parser class; None if `tool` and `reasoning` are both empty."""
        if not tool and not reasoning:
            return None
        from vllm.parser import ParserManager

        # vLLM logs a traceback for each call it cannot parse. The gateway counts them instead.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        try:
            return ParserManager.get_parser(
                tool_parser_name=tool or None,
                reasoning_parser_name=reasoning or None,
                enable_auto_tools=bool(tool),
                tokenizer=self.tokenizer,
            )
        except Exception as error:  # unknown, or it refuses the tokenizer
            reason = " ".join(str(error).split())[:300]
            setting = f"tool_parser={tool}" if tool else f"reasoning_parser={reasoning}"
            raise UserError(
                f"actor.agent.{setting}: cannot be used with this model ({reason}); choose auto, "
                "none or another of vLLM's parsers"
            ) from None


def reader_of(chat: ChatFormat, settings: AgentConfig) -> ReplyReader:
    """Makes the reader for a run's agents. May add tools to the template of `chat`. Raises
    UserError if the template or a parser does not fit."""
    if settings.tool_parser != "none":
        add_tools(chat)
    return ReplyReader(AgentChat(chat), settings.tool_parser, settings.reasoning_parser)


def before_stop(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Returns the text before the first stop text that it completes, and that stop text. If several
    end at the same character, the longest counts. Returns (text, "") if there is none."""
    found = [(at + len(each), at, each) for each in stop if each and (at := text.find(each)) >= 0]
    _, start, end = min(found, default=(0, len(text), ""))
    return text[:start], end


def _readable(call: Any) -> bool:
    """Whether every client can read a tool call: its arguments are a JSON object without NaN,
    infinite numbers and halves of surrogate pairs."""
    arguments = plain_arguments(call.arguments)
    try:
        json.dumps([call.name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return isinstance(arguments, dict)


def _request(tools: Sequence[Tool], choice: Any, parallel: bool = True) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    given = {"tools": list(tools), "tool_choice": choice} if tools else {}
    given |= {} if parallel else {"parallel_tool_calls": False}
    try:
        return ChatCompletionRequest(messages=[{"role": "user", "content": "u"}], **given)
    except Exception as error:  # of pydantic or of vLLM
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"tools and tool_choice {choice!r:.80}: {reason}") from None
