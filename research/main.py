"""Entry point of the command `ajet`: checks the interpreter before anything newer is imported.

Kept to syntax an old Python can parse, so that it can say what is wrong instead of failing on a feature.
"""

import os
import sys

OLDEST = (3, 11)
NEWEST = (3, 12)


def main() -> None:
    """Run the command line; exit code 2 with one line when Python is too old or too new, or a package is missing."""
    python = sys.version_info[:2]
    if not OLDEST <= python <= NEWEST:
        version = ".".join(str(part) for part in python)
        sys.stderr.write(
            f"ajet: expected Python 3.11 or 3.12, found {version}; make a virtual environment with one of them\n"
        )
        raise SystemExit(2)
    # What the output's encoding does not hold is escaped, here and in processes begun from here, in place of failing.
    if sys.stdout is not None:  # where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    os.environ["PYTHONIOENCODING"] = encoding + ":backslashreplace"
    try:
        from research.cli.app import run

        run()
    except KeyboardInterrupt:  # importing takes a second
        raise SystemExit(130) from None
    except ImportError as error:  # commands are imported when they are run
        why = " ".join(str(error).split())
        sys.stderr.write(f"ajet: expected all packages that ajet needs; found: {why}; install ajet again\n")
        raise SystemExit(2) from None
