"""The command line: one file per command, each imported only when its command runs.

::

    app       the group, exit codes, how errors are printed
    options   what flags share: --json, --debug, value kinds
    output    one JSON document, or text for people
    <command>.py
"""
