"""The format of prompts."""
