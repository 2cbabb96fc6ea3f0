"""Relative paths that a component opens and that do not exist."""

from pathlib import Path


def missing_file_note(error: BaseException, folder: Path | None) -> str | None:
    """Which files a relative path could mean, if one was not found; `folder` is that of the component."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str) or folder is None:
        return None
    path = Path(error.filename)
    if path.is_absolute():
        return None
    here, there = Path.cwd(), folder / path
    if here == folder:
        return f"{path} was looked for in the folder of the component, {folder}"
    state = "which exists" if there.exists() else "which does not exist either"
    return (
        f"{path} was looked for in the working directory, {here}; in the folder of the component it would be "
        f"{there}, {state}; open files of a component relative to Path(__file__).parent, or name them in its "
        "configuration"
    )
