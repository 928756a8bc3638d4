"""The environment variables that agents, graders and environments get.

secret_names     the user's keys, tokens and passwords: no environment, agent or grader gets them
client_names     what leads a client past the gateway, with another key or to another server
fresh_names      folders of replies: each attempt gets folders of its own
shared_folders   folders of downloads: all attempts use the user's
direct_hosts     completes no_proxy: calls to this machine go to no proxy

The setting `env.pass_environment` lists exceptions of the first three.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

SETUP = ("PYTHONPATH", "PYTHONHASHSEED", "HF_HUB_OFFLINE")
"""Variables that set up the worker's Python, which no agent gets."""
CACHES = (
    "XDG_CACHE_HOME",
    "DSPY_CACHEDIR",
    "DSP_CACHEDIR",
    "DSP_NOTEBOOK_CACHEDIR",
    "OUTLINES_CACHE_DIR",
    "CREWAI_STORAGE_DIR",
)
"""Variables that name folders in which clients keep replies or memories. With a shared folder, an
attempt would be answered with the replies of another one and call the policy less often."""
DOWNLOADS = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "UV_CACHE_DIR": "uv",
    "PIP_CACHE_DIR": "pip",
    "POETRY_CACHE_DIR": "pypoetry",
    "PLAYWRIGHT_BROWSERS_PATH": "ms-playwright",
    "DENO_DIR": "deno",
    "GOCACHE": "go-build",
}
"""Variables that name folders of downloads and builds, and their default folder below
$XDG_CACHE_HOME. They hold no replies, and to fetch them for each attempt would take long."""
NEAR = ("localhost", "127.0.0.1", "::1")

_SECRET = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|JWT|CREDENTIAL|OAUTH|AUTHORI[SZ]ATION|BEARER"
    r"|CONN(?:ECTION)?_?STR|WEBHOOK|PRIVATE|^AWS_"
    r"|(?<![A-Z])(PASS|PGPASSFILE|PAT|AUTH|CREDS|COOKIES?|DSN|KRB5CCNAME|PW|PEM|SALT)(?![A-Z])"
    r"|(?<!^)(?<!^OLD)PWD$|(?<!DESKTOP)(?<!FULL)_SESSION$|^SESSION_?ID$"
)
_HARMLESS = re.compile(
    r"TOKENI[SZ]|KEYBOARD|KEYMAP|MONKEY|^AWS_(?:DEFAULT_)?REGION$"
    r"|(?<![A-Z])(MAX|MIN|NUM|N|TOTAL|NEW|INPUT|OUTPUT|CONTEXT|THINKING|COMPLETION)_([A-Z]+_)*TOKENS?$"
)
"""Parts of names that _SECRET finds although they are not secret, such as MAX_TOKENS."""
_SECRET_VALUE = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/\s:@?#]*:(?!\d+/)[^\s@]+@"  # a URL's password
    r"|https?://(?!(?:git|hg)@)[^/\s:@?#]+@"  # a token in the place of its user
    r"|^\s*(?:bearer|basic)\s+[\w.~+/=-]{3,}\s*$"
    r"|(?<![a-z])(?:pass(?:word|wd|phrase)|pwd|(?:client_?)?secret|sig"
    r"|(?:api|access|account|auth|shared_?access|private)_?(?:key|token))"
    r"""["']?\s*[=:]\s*["']?[^\s;&$"'/]"""
    r"|-----BEGIN [A-Z ]*PRIVATE KEY",
    re.I,
)
"""Values that hold a secret, whatever their name is."""
_PROXY = re.compile(r"(?:HTTPS?|FTP|ALL|NO)_PROXY")

_CLIENT = re.compile(
    r"(?:OPENAI|AZURE_OPENAI|AZURE_API|AZURE_AI|ANTHROPIC|LITELLM|LITELLM_PROXY|GEMINI|GOOGLE_API"
    r"|GOOGLE_GEMINI|GOOGLE_VERTEX|VERTEX|VERTEXAI|BEDROCK|OLLAMA|MISTRAL|COHERE|CO|GROQ|TOGETHER"
    r"|TOGETHER_AI|TOGETHERAI|FIREWORKS|FIREWORKS_AI|OPENROUTER|DEEPSEEK|XAI|PERPLEXITY|VLLM"
    r"|HOSTED_VLLM|HF_INFERENCE)"
    r"_(?:[A-Z0-9]+_)*?"
    r"(?:URL|BASE|ENDPOINTS?|HOST|SERVER|KEYS?|TOKEN|ORG|ORGANIZATION|PROJECT|PROXY|TYPE|VERSION"
    r"|HEADERS|DEPLOYMENT|RESOURCE|SOCKET|PROFILE|SECRET)(?:_ID|_NAME|_DIR)?"
    r"|(?!R3L_)\w+_(?:API_BASE|BASE_URL)"
)
_CLOUD = re.compile(r"CLAUDE_CODE_(USE|SKIP|OAUTH|API)_\w+|GOOGLE_GENAI_USE_\w+|AZURE_AD_TOKEN")
"""Switches of clients that lead to a cloud's own servers."""


def secret_names(environ: Mapping[str, str], passed: Iterable[str] = ()) -> list[str]:
    """Returns the names of variables that hold a secret, except those that a pattern in `passed`
    matches. Never lists a proxy's URL, although it may hold a password, because without it no other
    machine could be reached."""
    return _unmatched(filter(lambda name: _is_secret(name, environ[name]), environ), passed)


def client_names(environ: Mapping[str, str], passed: Iterable[str] = ()) -> list[str]:
    """Returns the names of variables that hold the address of a model server or a key for it,
    except those that a pattern in `passed` matches."""
    found = (n for n in environ if _CLIENT.fullmatch(n.upper()) or _CLOUD.fullmatch(n.upper()))
    return _unmatched(found, passed)


def fresh_names(passed: Iterable[str] = ()) -> list[str]:
    """Returns the variables of CACHES that name a new folder in each attempt, except those that a
    pattern in `passed` matches."""
    return _unmatched(CACHES, passed)


def shared_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of DOWNLOADS with this user's folders, so that a fresh XDG_CACHE_HOME
    does not move them."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = {name: os.path.join(cache, folder) for name, folder in DOWNLOADS.items()}
    return {name: environ.get(name) or folder for name, folder in folders.items()}


def unset_names(
    environ: Mapping[str, str], passed: Sequence[str], servers: Iterable[str] = ()
) -> list[str]:
    """Returns the names of the variables that agents and graders do not get. `servers`: the names
    of the variables with the keys for other models' servers."""
    secret, clients = secret_names(environ, passed), client_names(environ, passed)
    return sorted({*secret, *clients, *servers} - {""})


def child_environment(more: Mapping[str, str], unset: Sequence[str] = ()) -> dict[str, str]:
    """Copies this process's variables, except SETUP and `unset`. Then adds `more`."""
    left_out = {*SETUP, *unset}
    return {name: value for name, value in os.environ.items() if name not in left_out} | {**more}


def direct_hosts(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """Returns no_proxy and NO_PROXY with the names of this machine and the hosts `more`."""
    given = ",".join(filter(None, (environ.get("no_proxy"), environ.get("NO_PROXY"))))
    hosts = dict.fromkeys(filter(None, (*map(str.strip, given.split(",")), *NEAR, *more)))
    direct = ",".join(hosts)
    return {"NO_PROXY": direct, "no_proxy": direct}


def _is_secret(name: str, value: str) -> bool:
    upper = name.upper()
    if _PROXY.fullmatch(upper):
        return False
    if _SECRET_VALUE.search(value):
        return True
    return bool(_SECRET.search(upper)) and not _HARMLESS.search(upper)


def _unmatched(names: Iterable[str], passed: Iterable[str]) -> list[str]:
    patterns = tuple(passed)
    return sorted(n for n in names if not any(fnmatchcase(n, pattern) for pattern in patterns))
