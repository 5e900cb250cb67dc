"""Tools of arithmetic, as Python functions and as an MCP server: `python data/tools/calculator.py`."""


def add(a: int, b: int) -> int:
    """Return the sum of two whole numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Return the product of two whole numbers."""
    return a * b


def serve() -> None:
    """Serve the same functions on standard input and output."""
    from mcp.server import MCPServer

    server = MCPServer("calculator")
    for function in (add, multiply):
        server.tool()(function)
    server.run()


if __name__ == "__main__":
    serve()
