"""An agent whose tools are an MCP server's: pip install openai "mcp>=2" """

import json
import re
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client
from openai import AsyncOpenAI

SERVER = Path(__file__).with_name("mcp_server.py")


async def play(task):
    model, messages = AsyncOpenAI(), [{"role": "user", "content": task["question"]}]
    command = StdioServerParameters(command=sys.executable, args=[str(SERVER)])
    async with Client(stdio_client(command)) as server:
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
            for tool in (await server.list_tools()).tools
        ]
        while True:
            made = {"model": "policy", "messages": messages, "tools": tools}
            reply = (await model.chat.completions.create(**made)).choices[0].message
            messages.append(reply)
            for call in reply.tool_calls or ():
                given = json.loads(call.function.arguments)
                said = (await server.call_tool(call.function.name, given)).content[0].text
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
            if not reply.tool_calls:
                numbers = re.findall(r"-?\d+", (reply.content or "").replace(",", ""))
                return {"reward": float(numbers[-1:] == [str(task["answer"])])}
