"""A campaign of kills and faults against collections: `python -m tests.support.campaign KILLS`."""
