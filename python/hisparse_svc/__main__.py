"""`python -m hisparse_svc` is `hisparse-svc`.

::

    SIGINT ─► while the program is imported, and when it is done: `leave`, at once
           ─► while it runs: KeyboardInterrupt, and the command cleans up

Until its handler is there, a Ctrl-C meets Python itself: so nothing is imported before that takes time.
"""

import os
import signal


def main() -> None:
    """Run the command line, and leave with its exit code."""
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler  # else it is ignored, as in a script's background jobs
    if ours:
        signal.signal(signal.SIGINT, leave)
    from hisparse_svc.cli.app import main as program  # noqa: PLC0415 - see above

    try:
        if ours:
            signal.signal(signal.SIGINT, before)
        program()
    except KeyboardInterrupt:
        leave()
    finally:
        if ours:
            signal.signal(signal.SIGINT, leave)


def leave(*_: object) -> None:
    """Say what `cli.app` says of an interruption, and end: an import that is cut short can only show its traceback."""
    newline = b"\n" if os.isatty(2) else b""  # the terminal has just written ^C
    try:
        os.write(2, newline + b"error: interrupted\n")
    finally:  # nobody may be reading
        os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
