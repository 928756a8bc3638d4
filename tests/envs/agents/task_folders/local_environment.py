"""An environment of Harbor without containers, for tests of its runner on a machine without Docker.

Harbor's interpreter imports it by name. Each command sees Harbor's paths by mounts of its own
(envs/agents/task_folders/private_view.py), as commands in a container would.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from view_command import SHOWN

COMMAND = Path(__file__).with_name("view_command.py")


class LocalEnvironment(BaseEnvironment):
    def __init__(self, *args, **kwargs):
        self.root = Path(tempfile.mkdtemp(prefix="r3l-harbor-test-"))
        super().__init__(*args, **kwargs)

    @staticmethod
    def type():
        return "local-test"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True, dynamic_network_policy=True)

    async def set_network_policy(self, policy):
        pass

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        for name in (*SHOWN, "view", "logs/agent", "logs/verifier", "logs/artifacts"):
            (self.root / name).mkdir(exist_ok=True)
        shutil.copytree(self.environment_dir, self.root / "app", dirs_exist_ok=True)

    async def stop(self, delete):
        shutil.rmtree(self.root, ignore_errors=True)

    def _host(self, path):
        return self.root / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._host(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._host(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._host(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path):
        shutil.copy(self._host(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._host(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        process = await asyncio.create_subprocess_exec(
            sys.executable, COMMAND, str(self.root), command, cwd or "/app",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._persistent_env, **(env or {})},
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_sec):
                said, wrong = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        return ExecResult(
            stdout=said.decode(), stderr=wrong.decode(), return_code=process.returncode
        )
