"""``mcp serve``: runs for an assistant, as an MCP server. It starts, shows, answers and cancels.

It decides on nothing: no tool of it approves, rejects, edits or resolves.
"""
