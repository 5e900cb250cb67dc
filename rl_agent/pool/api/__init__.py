"""The manager's HTTP routes, who may call them, and the OpenAI API over all engines.

Imports `runtime`, `engines` and `scheduler`. Begin with `routes`.
"""
