"""The only modules that use undocumented APIs of other libraries: one module per library.

Each module names the APIs it uses and why. Its probe runs at first use and checks that the installed version
behaves as needed. If the probe fails, the documented API is used instead: slower, same result.
"""
