"""Analysis of rollouts files: export to other formats, comparison of runs, profiles and reports."""
