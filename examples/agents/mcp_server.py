"""A calculator as an MCP server, over standard input and output: pip install "mcp>=2" """

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


if __name__ == "__main__":
    server.run()
