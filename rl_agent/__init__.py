"""An RL harness for LLM and VLM agents: rollout, update, both; see README.md."""
