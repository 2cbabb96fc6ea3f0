"""Text for people: progress, report, dry run. Data in, text out."""
