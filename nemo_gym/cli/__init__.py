"""The command line: parse, one call, render. Nothing else in the project prints or exits."""
