"""Tools of MCP servers, as one reviewed file says of them."""
