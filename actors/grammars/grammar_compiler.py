"""Compiles grammars for actors.grammars.grammar_helper, which starts it as a program.

Each line of standard input is a JSON object, each line of output the answer to one:

    {tokenizer, end, whitespace, separators}   first line: the tokenizer, and how to compile
    {kind: json | structural_tag, text, cpu_s} ─► {refused}: why the engine cannot follow it, or ""

Each grammar is compiled in a fork of this process, with limits on CPU time and memory. So a grammar
that compiles forever, fills the memory or crashes the library only ends the fork.
"""

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from actors.grammars.schema_rules import check_schema, schemas_in
from r3l.run.process.end_with_parent import end_with

CPU_S, READ_S = 20, 0.5
"""CPU seconds to compile one grammar, and how many of them may go to reading it, which the actor
does too."""
MORE_BYTES = 2 << 30
"""Memory for one grammar."""
LONGEST_ANSWER = 2000
JSON, TAG = "json", "structural_tag"
OWN_WORDS = "write a smaller or simpler one"


class Compiler:
    """Compiles grammars as an engine with this tokenizer does."""

    def __init__(
        self, tokenizer: str, end: list[int], whitespace: bool, separators: list[str] | None
    ) -> None:
        between: Any = separators and tuple(separators)
        import xgrammar

        info = xgrammar.TokenizerInfo.deserialize_json(tokenizer)
        self.tokens, self.end = info.vocab_size, end
        self.whitespace, self.separators = whitespace, between
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def refusal(self, kind: str, text: str) -> str:
        """Returns why the engine cannot follow a grammar, or "". Raises what xgrammar raises."""
        import xgrammar

        schemas = [json.loads(text)] if kind == JSON else schemas_in(json.loads(text))
        for schema in schemas:
            if why := check_schema(schema):
                return why
        began = time.process_time()
        if kind == JSON:
            xgrammar.Grammar.from_json_schema(text)
        else:
            xgrammar.Grammar.from_structural_tag(*_tag(text))
        if time.process_time() - began > READ_S:
            return f"it takes more than {READ_S} CPU seconds to read; {OWN_WORDS}"
        matcher = xgrammar.GrammarMatcher(self._compiled(kind, text), override_stop_tokens=self.end)
        allowed = xgrammar.allocate_token_bitmask(1, self.tokens)
        matcher.fill_next_token_bitmask(allowed)
        return "" if bool(allowed.any()) else "it allows no token at all"

    def _compiled(self, kind: str, text: str) -> Any:
        if kind == JSON:
            return self.compiler.compile_json_schema(
                text, any_whitespace=self.whitespace, separators=self.separators
            )
        return self.compiler.compile_structural_tag(*_tag(text))


def _tag(text: str) -> tuple[Any, ...]:
    """Returns xgrammar's arguments for a structural tag, whose form has an older variant."""
    import xgrammar

    tag = json.loads(text)
    if "structures" not in tag:
        return (text,)
    items = [
        xgrammar.StructuralTagItem(
            begin=each["begin"], schema=json.dumps(each["schema"]), end=each["end"]
        )
        for each in tag["structures"]
    ]
    return items, tag["triggers"]


def too_slow(cpu_s: int) -> str:
    """Returns why a grammar that takes too long is refused."""
    return f"it takes more than {cpu_s} CPU seconds to compile; {OWN_WORDS}"


def answer(compiler: Compiler, kind: str, text: str, cpu_s: int = CPU_S) -> str:
    """Tries a grammar in a forked process. Returns why the engine cannot follow the grammar, or
    ""."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            os.write(write, _in_child(compiler, kind, text, cpu_s).encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return too_slow(cpu_s)
    if code < 0:
        name = signal.Signals(-code).name
        return f"the compiler of grammars crashes on it ({name}); {OWN_WORDS}"
    return said.decode()


def _in_child(compiler: Compiler, kind: str, text: str, cpu_s: int) -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # a fork's own time
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        return compiler.refusal(kind, text)[:LONGEST_ANSWER]
    except MemoryError:
        return f"it takes more than {MORE_BYTES >> 30} GiB of memory to compile; {OWN_WORDS}"
    except Exception as error:  # a library of C++ may raise anything
        reason = " ".join(str(error).split())[:LONGEST_ANSWER]
        return f"it cannot be compiled ({reason})"


def main() -> None:
    end_with(os.getppid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library may print
    compiler = Compiler(**json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(
            json.dumps({"refused": answer(compiler, **json.loads(line))}), file=answers, flush=True
        )


if __name__ == "__main__":
    main()
