"""A helper process that fails, whatever it does, fails one request by name and is replaced."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from actors.grammars import grammar_helper as module
from actors.grammars.grammar_helper import GrammarHelper
from r3l.errors import EngineFailed

FINE = (
    'import sys\nfor n, line in enumerate(sys.stdin):\n    print(\'{"refused": ""}\', flush=True)'
)
FAULTS = {
    "ends at once": "",
    "says no JSON": "print('no', flush=True)\nimport time; time.sleep(60)",
    "says no verdict": "import sys\nfor line in sys.stdin: print('{}', flush=True)",
    "says nothing": "import time; time.sleep(60)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_helper_that_fails_is_named_and_replaced(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "helper.py"
    program.write_text(FAULTS[fault])
    monkeypatch.setattr(module, "module_command", lambda name: [sys.executable, str(program)])
    monkeypatch.setattr(module, "LIMIT_S", 3.0)

    async def test() -> None:
        helper = GrammarHelper(lambda: {"first": json.dumps(1)})
        with pytest.raises(EngineFailed, match="starts another one") as failed:
            await helper.try_grammar("json", "{}", 1)
        assert failed.value.cause == "grammar_check"
        assert vars(helper)["process"] is None
        program.write_text(FINE)
        monkeypatch.setattr(module, "LIMIT_S", 60.0)
        assert await helper.try_grammar("json", "{}", 1) == ""
        process = helper.process
        assert await helper.try_grammar("json", "{}", 1) == "" and helper.process is process
        helper.close()
        assert process is not None and process.poll() is not None

    asyncio.run(test())
