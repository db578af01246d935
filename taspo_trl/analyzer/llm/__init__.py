"""An analyzer behind LiteLLM: one question paced, repeated, cached, paid for."""
