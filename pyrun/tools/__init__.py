"""The tool server: files, commands, HTTP, JSON, memory and other models for whoever speaks MCP."""
