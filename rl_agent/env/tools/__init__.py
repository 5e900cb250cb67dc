"""Tasks whose agent calls tools: Python functions, or those of an MCP server. Begin with `environment`."""
