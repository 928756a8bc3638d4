"""What agents see of the user's environment variables."""

import os

import pytest

from envs.agents.agent_variables import (
    child_environment,
    client_names,
    direct_hosts,
    fresh_names,
    secret_names,
    shared_folders,
    unset_names,
)

SECRETS = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GH_TOKEN MY_TOKENS WANDB_API_KEY API_KEY MY_API_KEY2
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_WEB_IDENTITY_TOKEN_FILE
SLURM_JWT DB_PASSWORD PGPASSWORD MYSQL_PWD SMTP_PASS DB_PASSWD KEY_PASSPHRASE CLIENT_SECRET SECRET_X
GOOGLE_APPLICATION_CREDENTIALS GITHUB_PAT SSH_AUTH_SOCK DOCKER_AUTH_CONFIG mykey apiToken SENTRY_DSN
AZURE_STORAGE_CONNECTION_STRING DB_CONNSTR SLACK_WEBHOOK_URL DISCORD_WEBHOOK AUTHORIZATION_HEADER
GOOGLE_OAUTH MY_OAUTH DB_PW DBPWD BEARER PRIVATE_PEM SIGNING_SALT LEETCODE_SESSION SESSION_ID
""".split()
HARMLESS = """
HOME PATH USER SHELL LANG LC_ALL TERM PWD OLDPWD TMPDIR TZ HTTP_PROXY https_proxy ALL_PROXY no_proxy
TOKENIZERS_PARALLELISM MAX_TOKENS CLAUDE_CODE_MAX_OUTPUT_TOKENS MAX_THINKING_TOKENS PATTERN AUTHOR
XAUTHORITY COMPASS_DIR CUDA_VISIBLE_DEVICES SLURM_JOB_ID HF_HOME HF_ENDPOINT AWS_REGION KEYBOARD
LD_LIBRARY_PATH VIRTUAL_ENV OMP_NUM_THREADS XDG_SESSION_ID TERM_SESSION_ID DBUS_SESSION_BUS_ADDRESS
DESKTOP_SESSION SESSION_MANAGER BASE_URL R3L_BASE_URL DATABASE_URL POWER SALTSTACK
""".split()
CLIENTS = """
OPENAI_API_KEY OPENAI_BASE_URL OPENAI_API_BASE OPENAI_ORG OPENAI_ORG_ID OPENAI_ORGANIZATION
OPENAI_PROJECT_ID OPENAI_API_TYPE OPENAI_API_VERSION OPENAI_PROXY OPENAI_API_HOST OPENAI_HOST
OPENAI_ADMIN_KEY AZURE_OPENAI_ENDPOINT AZURE_OPENAI_API_KEY AZURE_OPENAI_AD_TOKEN
AZURE_OPENAI_API_VERSION AZURE_API_BASE ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL
ANTHROPIC_API_URL ANTHROPIC_CUSTOM_HEADERS ANTHROPIC_BEDROCK_BASE_URL ANTHROPIC_VERTEX_PROJECT_ID
CLAUDE_CODE_USE_BEDROCK CLAUDE_CODE_OAUTH_TOKEN LITELLM_API_KEY LITELLM_API_BASE
LITELLM_PROXY_API_BASE LITELLM_PROXY_API_KEY GEMINI_API_KEY GEMINI_API_BASE GOOGLE_API_KEY
GOOGLE_GEMINI_BASE_URL GOOGLE_GENAI_USE_VERTEXAI OLLAMA_HOST OLLAMA_API_BASE MISTRAL_API_KEY
GROQ_API_KEY OPENROUTER_API_KEY DEEPSEEK_API_BASE CO_API_URL
AIDER_OPENAI_API_BASE LLM_BASE_URL LM_STUDIO_API_BASE HUGGINGFACE_API_BASE DASHSCOPE_API_BASE
NVIDIA_NIM_API_BASE CEREBRAS_API_BASE MOONSHOT_API_BASE lmstudio_base_url
""".split()
OF_THE_AGENT = """
OPENAI_MODEL OPENAI_DEFAULT_MODEL OPENAI_LOG OPENAI_TIMEOUT ANTHROPIC_MODEL LITELLM_LOG
OPENAI_AGENTS_DISABLE_TRACING GOOGLE_CLOUD_PROJECT
""".split()
"""Variables of agents that lead to no server."""


def test_secrets_are_known_by_their_names() -> None:
    environ = dict.fromkeys((*SECRETS, *HARMLESS), "x")
    assert secret_names(environ) == sorted(SECRETS)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("DATABASE_URL", "postgres://me:word@db/x", True),
        ("PIP_INDEX_URL", "https://:word@index/simple", True),
        ("REDIS", "redis://:word@h/0", True),
        ("DATABASE_URL", "postgres://u:p/w@h/d", True),
        ("REMOTE", "https://x-access-token@github.com/o/r", True),
        ("REMOTE", "git+https://ghp_abc@github.com/o/r", True),
        ("REMOTES", "origin https://me:word@github.com/o/r", True),
        ("DB", "host=x user=y password=hunter2", True),
        ("DB", "Server=x;Pwd=hunter2;", True),
        ("BLOB", "https://x.blob.net/c?sv=1&sig=abc%3D", True),
        ("STORE", "AccountName=a;AccountKey=abc==", True),
        ("CONFIG", '{"password": "hunter2"}', True),
        ("HEADER", "Bearer abc", True),
        ("HEADER", "Basic dXNlcjpwYXNz", True),
        ("MINE", "-----BEGIN RSA PRIVATE KEY-----", True),
        ("DATABASE_URL", "postgres://db:5432/x", False),
        ("DATABASE_URL", "postgres://me@db:5432/x", False),
        ("REMOTE", "ssh://git@github.com/o/r", False),
        ("REMOTE", "git@github.com:o/r", False),
        ("SCRIPT", "https://unpkg.com/react@18", False),
        ("SCRIPT", "http://host:8080/react@18", False),
        ("REGISTRY", "https://registry/@types/node", False),
        ("ABOUT", "Basic usage of a bearer", False),
        ("BASH_FUNC_module%%", '() { local pwd=$PWD; cd "$pwd"; }', False),
        ("https_proxy", "http://me:word@proxy:3128", False),  # nothing outside could be reached
    ],
)
def test_a_password_in_a_value_is_a_secret_unless_it_is_a_proxys(
    name: str, value: str, secret: bool
) -> None:
    assert secret_names({name: value}) == [name] * secret


def test_what_leads_a_client_past_the_gateway_is_known() -> None:
    environ = dict.fromkeys((*CLIENTS, *OF_THE_AGENT, *HARMLESS), "x")
    assert client_names(environ) == sorted(CLIENTS)


def test_what_the_user_lists_is_passed() -> None:
    environ = dict.fromkeys(
        ("HF_TOKEN", "AWS_PROFILE", "AWS_SECRET", "GEMINI_API_KEY", "MINE"), "x"
    )
    assert secret_names(environ, ["HF_TOKEN", "AWS_*"]) == ["GEMINI_API_KEY"]
    passed = ["GEMINI_*", "AWS_SECRET"]
    assert unset_names(environ, passed, ["MINE", ""]) == ["AWS_PROFILE", "HF_TOKEN", "MINE"]


def test_an_agent_gets_the_users_variables_without_those_that_mislead_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert "PYTHONPATH" not in child_environment({})
    assert child_environment({"A": "b"}) == child_environment({}) | {"A": "b"}
    assert child_environment({})["PATH"] == os.environ["PATH"]
    assert "PATH" not in child_environment({}, ["PATH", ""])


@pytest.mark.parametrize(
    ("environ", "more", "direct"),
    [
        ({}, (), "localhost,127.0.0.1,::1"),
        ({"no_proxy": "a", "NO_PROXY": "b, a"}, ("h",), "a,b,localhost,127.0.0.1,::1,h"),
        ({"NO_PROXY": "::1"}, ("127.0.0.1", ""), "::1,localhost,127.0.0.1"),
    ],
)
def test_calls_to_this_machine_go_to_no_proxy(
    environ: dict[str, str], more: tuple[str, ...], direct: str
) -> None:
    assert direct_hosts(environ, *more) == {"no_proxy": direct, "NO_PROXY": direct}


def test_folders_of_replies_are_fresh_unless_they_are_listed() -> None:
    assert {"XDG_CACHE_HOME", "DSPY_CACHEDIR", "CREWAI_STORAGE_DIR"} <= {*fresh_names()}
    assert "DSPY_CACHEDIR" not in fresh_names(["DSPY_*"])
    assert not {*fresh_names()} & shared_folders({}).keys()


def test_folders_of_downloads_stay_where_they_are() -> None:
    shared = shared_folders({"XDG_CACHE_HOME": "/big", "TORCH_HOME": "/torch"})
    assert (shared["HF_HOME"], shared["TORCH_HOME"]) == ("/big/huggingface", "/torch")
    assert shared_folders({"HOME": "/me"})["UV_CACHE_DIR"] == os.path.expanduser("~/.cache/uv")
