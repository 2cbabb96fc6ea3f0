"""Policies and what they generate."""
