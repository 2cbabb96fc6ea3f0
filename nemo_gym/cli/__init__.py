"""The command line: parse arguments, make one call, print the result. No other package prints or exits."""
